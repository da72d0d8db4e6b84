"""Writable or read-only: the rules, who asks for it, how it is kept over restarts."""
