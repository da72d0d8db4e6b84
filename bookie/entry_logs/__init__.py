"""Entry logs: their format, writing, reading and read-ahead."""
