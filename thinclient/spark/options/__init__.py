"""Options of the source and the sink, and how their values are read."""
