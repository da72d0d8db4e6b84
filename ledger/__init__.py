"""What clients, gateways and bookies share: ids, metadata, digests, entries, quorums, errors, the store interfaces.
Pure."""
