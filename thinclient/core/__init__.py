"""The protocol engine: what a client does next, given what has happened. Pure."""
