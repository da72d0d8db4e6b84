"""The gRPC services: ledger metadata, Iterate, Watch, discovery, registration, and what they share."""
