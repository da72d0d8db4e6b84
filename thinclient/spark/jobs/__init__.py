"""Jobs that ship: audit, export, usage, orphans, leftovers of writes."""
