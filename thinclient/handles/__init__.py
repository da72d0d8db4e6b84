"""What an application holds: handles that write, read, tail and recover, and what they are made of."""
