"""What tests look at inside a client that applications have no access to: the one place that knows where it is."""

from __future__ import annotations

from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.core.writing import LedgerWriter
from bookgate.thinclient.handles.base_write_handle import BaseWriteHandle
from bookgate.thinclient.handles.in_flight_window import InFlightWindow


def pool_of(client: BookKeeper) -> BookiePool:
    """The client's connections to bookies."""
    return client._context.pool


def window_of(ledger: BaseWriteHandle) -> InFlightWindow:
    """What a writer has under way."""
    return ledger._window


def writer_of(ledger: BaseWriteHandle) -> LedgerWriter:
    """The core of a writer."""
    return ledger._writer
