"""The protocol engine: decides what a client does next after each event. Pure."""
