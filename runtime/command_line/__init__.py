"""How commands are grouped, and how they print results, progress and failures."""
