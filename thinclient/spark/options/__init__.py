"""Options of the source and the sink, and the parsing of their values."""
