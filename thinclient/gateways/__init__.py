"""Metadata over gRPC: the channel to several gateways, calls and streams, watches, discovery, registration."""
