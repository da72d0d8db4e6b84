"""The vocabulary that clients, gateways and bookies share: ids, metadata, digests, entries, quorums, errors and the
metadata store interfaces. Pure.
"""
