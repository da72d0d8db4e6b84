"""Streaming reads: what is available, how much of it a batch takes."""
