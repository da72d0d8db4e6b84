"""Examining a bookie's files: `bookgate bookie inspect`. Reads only; takes no lock, writes nothing."""
