"""Directories of a bookie, and what happens when they fill up."""
