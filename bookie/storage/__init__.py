"""LedgerStorage: writing, reading, checkpoints, replay, ledgers in memory and on disk."""
