"""The bookie's HTTP interface: the admin paths, and the bookie's half of the console."""
