"""The command `bookgate spark`."""
