"""Streams as tables of records: `option("stream", name)`."""
