"""Batch reads: planning partitions from a listing, pushdown, reading entries."""
