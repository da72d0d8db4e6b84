"""Several bookies of one host under one supervisor; they share nothing but the settings they are derived from."""
