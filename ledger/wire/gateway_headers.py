"""Keys of the gRPC metadata exchanged between a client and a metadata gateway."""

from __future__ import annotations

NOT_DONE = "bookgate-not-done"
"""Trailing metadata by which a gateway states that it certainly did not carry out a change."""

INSTANCE = "bookgate-instance"
"""Trailing metadata that carries the id of the gateway process. A client sends it as request metadata to address one
process.
"""
