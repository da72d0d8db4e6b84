"""A cluster on one host, for trying out and for tests."""
