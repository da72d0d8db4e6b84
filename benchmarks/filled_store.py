"""Embedded stores with very many ledgers, written to their files directly, as the rows that the store itself writes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from bookgate.gateway.stores.drivers import ensure_cluster
from bookgate.gateway.stores.sqlite.change_feed import ledger_key
from bookgate.ledger.ledger_id import LedgerId

_INSERT = "INSERT INTO ledgers (key, version, created_revision, metadata, created_ms) VALUES (?, 0, 1, ?, ?)"


def make_filled_store(path: Path, ledgers: Iterable[tuple[LedgerId, bytes]]) -> str:
    """The URI of a new store with these ledgers, each with its encoded metadata."""
    uri = f"sqlite://{path}"
    asyncio.run(ensure_cluster(uri))
    fill_store(path, ledgers)
    return uri


def fill_store(path: Path, ledgers: Iterable[tuple[LedgerId, bytes]]) -> None:
    """Adds ledgers to a store that is there, in one transaction."""
    now = time.time_ns() // 10**6
    rows = ((ledger_key(ledger_id), metadata, now) for ledger_id, metadata in ledgers)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_INSERT, rows)
