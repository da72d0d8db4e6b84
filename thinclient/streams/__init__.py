"""Streams: endless logs of records by name, with cursors and retention, over unbounded ledgers."""
