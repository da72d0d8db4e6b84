"""The gRPC services: ledger metadata, Iterate, Watch, discovery, registration, and the code they share."""
