"""The client's rules of unbounded ledgers: writing, taking over, and the changes of the metadata."""
