"""How a bookie belongs to a cluster: its cookie and its registration."""
