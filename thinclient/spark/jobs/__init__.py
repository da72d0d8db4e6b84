"""Included jobs: audit, export, usage, orphans, leftovers of writes."""
