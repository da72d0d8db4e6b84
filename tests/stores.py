"""Metadata stores with a cluster in them, as `bookgate cluster init` leaves them."""

from __future__ import annotations

from bookgate.bookie.standalone.cluster import make_cluster


def made(uri: str) -> str:
    """The URI, with a cluster in its store: a fresh one unless there was one."""
    make_cluster(uri)
    return uri
