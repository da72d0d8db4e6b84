"""Keys of the gRPC metadata exchanged between a client and a metadata gateway."""

from __future__ import annotations

NOT_DONE = "bookgate-not-done"
"""Trailing metadata by which a gateway states that it certainly did not carry out a change."""

RETRY_AFTER_MS = "retry-after-ms"
"""Trailing metadata of a call that exceeded a limit: milliseconds after which the client may try that gateway again."""

QUOTA = "bookgate-quota"
"""Trailing metadata of a create that a quota rejected: it can succeed only after ledgers have been deleted."""

INSTANCE = "bookgate-instance"
"""Trailing metadata that carries the id of the gateway process. A client sends it as request metadata to address one
process.
"""
