"""Garbage collection: which ledgers are deleted, which entry logs are removed or compacted."""
