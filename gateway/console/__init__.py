"""The operator's console: its pages, and the routes that serve their data."""
