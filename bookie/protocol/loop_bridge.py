"""Passes the events of storage from its threads to the event loop.

Each event becomes one call on the loop, in the order of its thread; a batch of completions is one call. Before `serve`
no request is in storage, so earlier events concern only the bookie as a whole.

Not its job: the contents of responses (`request_processor`), modes and disks (the bookie).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from bookgate.bookie.protocol.connections import Connections
from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.bookie.protocol.long_polls import LongPolls
from bookgate.bookie.protocol.request_processor import RequestProcessor
from bookgate.bookie.storage.writer import EntryWriter
from bookgate.bookie.storage_events import Completion, Retry


class Owner(Protocol):
    """The bookie as a whole, which storage may stop. Called on the event loop."""

    def out_of_space(self) -> None:
        """A write found no space: adds are rejected until there is some."""

    def space_restored(self) -> None:
        """Writes that had found no space may have succeeded."""

    def fail(self, error: BaseException) -> None:
        """Storage has ended, and with it the bookie."""


class LoopBridge:
    """Implements `StorageEvents`; created on the event loop, called from any thread."""

    def __init__(self, connections: Connections, owner: Owner) -> None:
        self._tell = asyncio.get_running_loop().call_soon_threadsafe
        self._connections = connections
        self._owner = owner
        self.owners: LedgerOwners | None = None
        """Notified of deleted ledgers, if a policy needs owners."""
        self._served: tuple[RequestProcessor, EntryWriter, LongPolls] | None = None

    def serve(self, processor: RequestProcessor, writer: EntryWriter, long_polls: LongPolls) -> None:
        """Requests are accepted from now on."""
        self._served = processor, writer, long_polls

    def stored(self, completions: Sequence[Completion]) -> None:
        if self._served is not None:
            self._tell(self._served[0].stored, completions)

    def not_stored(self, completions: Sequence[Completion], error: OSError) -> Retry:
        self._tell(self._not_stored, completions)
        return Retry.WITH_SPACE

    def _not_stored(self, completions: Sequence[Completion]) -> None:
        self._owner.out_of_space()
        if self._served is not None:
            self._served[0].not_stored(completions)
        # Their next adds are rejected; their reads must continue.
        self._connections.capacity_available()

    def capacity_available(self) -> None:
        self._tell(self._capacity_available)

    def _capacity_available(self) -> None:
        # Journal and write cache may have capacity at different times: adds continue when both have.
        if self._served is not None and self._served[1].accepts_adds:
            self._connections.capacity_available()

    def space_restored(self) -> None:
        self._tell(self._owner.space_restored)

    def ledgers_deleted(self, ids: Sequence[int]) -> None:
        self._tell(self._ledgers_deleted, list(ids))

    def _ledgers_deleted(self, ids: Sequence[int]) -> None:
        if self.owners is not None:
            self.owners.forget(ids)
        if self._served is not None:
            for ledger_id in ids:
                self._served[2].wake(ledger_id)

    def failed(self, error: BaseException) -> None:
        self._tell(self._owner.fail, error)
