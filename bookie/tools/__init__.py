"""The parts of commands that examine a bookie from outside."""
