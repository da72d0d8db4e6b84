"""The worker, the repair of a ledger, and recovery by hand."""
