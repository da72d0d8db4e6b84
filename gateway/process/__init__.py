"""A gateway as a process: serving, its HTTP, several workers at one port."""
