"""The storage server; it can host a gateway."""
