"""The contract on the wire and at rest, and the stubs generated from it."""
