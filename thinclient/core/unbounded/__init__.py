"""The client's half of unbounded ledgers: writing, taking over, and the changes of the metadata."""
