"""Metadata stores with a cluster in them, as `bookgate cluster init` leaves them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from bookgate.bookie.standalone.cluster import make_cluster
from bookgate.gateway.stores.sqlite.store import SqliteStore

T = TypeVar("T")


def made(uri: str) -> str:
    """The URI, with a cluster in its store: a fresh one unless there was one."""
    make_cluster(uri)
    return uri


async def with_changing_connection(store: SqliteStore, operation: Callable[[sqlite3.Connection], T]) -> T:
    """Runs the operation with the connection that makes changes, outside of a transaction."""
    return await asyncio.wrap_future(store._changes.submit(lambda: operation(store._opened(store._connection))))
