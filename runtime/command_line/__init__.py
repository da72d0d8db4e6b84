"""Command groups, and how commands print results, progress and failures."""
