"""Keys of the metadata that goes beside calls between a client and a metadata gateway."""

from __future__ import annotations

NOT_DONE = "bookgate-not-done"
"""Trailing metadata by which a gateway says that it surely did not carry out a change."""

INSTANCE = "bookgate-instance"
"""Trailing metadata by which a gateway process tells its id; callers name by it, in theirs, the one that they mean."""
