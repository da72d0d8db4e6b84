"""`python -m bookie`: the same as `bookgate bookie`, also where the command is not on the path."""

from bookie.cli import app

app(prog_name="bookgate bookie")
