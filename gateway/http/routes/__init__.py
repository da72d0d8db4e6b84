"""The routes of every process."""
