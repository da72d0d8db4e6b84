"""Parts of commands that look at a bookie from outside."""
