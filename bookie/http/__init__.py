"""HTTP of a bookie: the admin's paths, and the bookie's half of the console."""
