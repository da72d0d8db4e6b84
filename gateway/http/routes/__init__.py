"""The routes that every process has."""
