"""Handles of unbounded ledgers: taking one over, and writing to it at a term."""
