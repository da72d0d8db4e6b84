"""Unit tests of the bookie over HTTP."""
