"""The servers of a small world: bookies around the product's ledger state, and a register with compare-and-set.

A bookie's requests take effect in memory at once. They are durable, and answered, with the next *sync*: a move of its
own where the world says so, else at once. A crash loses what was not synced. That a fence was promised is noted, so
that P7 is judged at the add that breaks it; P8 with it, since whoever is told that an entry is missing has fenced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BookieHandleNotAvailableException, LedgerFencedException
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.core.recovery_reads import Missing, Unreadable
from tests.explore.letters import (
    Add,
    FencingRead,
    FoundRun,
    Handle,
    Look,
    Move,
    PlainRead,
    Record,
    Stored,
    Violation,
    Write,
)

LEDGER = LedgerId.unscoped(5)
_KEY = b"key"
Answers = Sequence[tuple[int, Handle | None, object]]


class Bookie:
    """One bookie and its one ledger."""

    def __init__(self, *, syncs_apart: bool) -> None:
        self.syncs_apart = syncs_apart
        self.up = True
        self.ledger = BookieLedgerState(LEDGER, _KEY)
        self.entries: dict[int, Entry] = {}
        self.durable: dict[int, Entry] = {}
        self.durably_fenced = False
        self.waiting: list[tuple[int, Handle | None, Add | FencingRead]] = []
        """Requests to be answered at the next sync."""
        self.promised_fence = False

    def moves(self) -> Sequence[Move]:
        if not self.up:
            return (("restart",),)
        return (("sync",),) if self.waiting else ()

    def act(self, move: Move) -> Answers:
        if move == ("restart",):
            self.up = True
            return ()
        return self._sync()

    def crash(self) -> None:
        """Memory is lost."""
        self.up = False
        self.waiting = []
        self.entries = dict(self.durable)
        lac = max((entry.last_add_confirmed for entry in self.entries.values()), default=NO_ENTRY)
        self.ledger = BookieLedgerState(LEDGER, _KEY, fenced=self.durably_fenced, known_lac=lac)

    def serve(self, client: int, handle: Handle | None, request: object) -> Answers:
        assert isinstance(request, Add | FencingRead | PlainRead)
        if not self.up:
            return ((client, handle, _refusal(request)),)
        if isinstance(request, PlainRead):
            return ((client, handle, self._read(request.entry_id)),)  # also of what is not durable yet
        if isinstance(request, FencingRead):
            self.ledger.fenced = True
        elif self.ledger.check_add(_KEY, recovery=request.recovery) is not Status.EOK:
            return ((client, handle, Stored(LedgerFencedException())),)
        else:
            self._store(request)
        self.waiting.append((client, handle, request))
        return () if self.syncs_apart else self._sync()

    def _store(self, add: Add) -> None:
        entry_id = add.entry.entry_id
        if self.promised_fence and not add.recovery:
            raise Violation("P7", f"a bookie that is fenced takes the writer's entry {entry_id}")
        self.entries[entry_id] = add.entry
        self.ledger.advance_lac(add.entry.last_add_confirmed)

    def _sync(self) -> Answers:
        self.durable = dict(self.entries)
        self.durably_fenced = self.ledger.fenced
        waiting, self.waiting = self.waiting, []
        return [(client, handle, self._answer(request)) for client, handle, request in waiting]

    def _answer(self, request: Add | FencingRead) -> object:
        if isinstance(request, Add):
            return Stored(None)
        self.promised_fence = True
        run = itertools.takewhile(bool, map(self.entries.get, self._wanted(request)))
        entries = tuple(entry for entry in run if entry is not None)
        return FoundRun(entries) if len(entries) > 1 else self._read(request.entry_id)

    def _wanted(self, request: FencingRead) -> range:
        return range(request.entry_id, request.entry_id + 1 + request.following)

    def _read(self, entry_id: int) -> Entry | Missing:
        wanted = max(self.entries, default=NO_ENTRY) if entry_id < 0 else entry_id
        return self.entries.get(wanted, Missing.MISSING)

    def ignores(self, request: object) -> bool:
        if isinstance(request, PlainRead):
            return True
        if isinstance(request, FencingRead):
            return self.durably_fenced
        assert isinstance(request, Add)
        if self.durably_fenced and not request.recovery:
            return True
        return self.durable.get(request.entry.entry_id) == request.entry


def _refusal(request: Add | FencingRead | PlainRead) -> object:
    error = BookieHandleNotAvailableException()
    return Stored(error) if isinstance(request, Add) else Unreadable(error)


class Store:
    """The ledger's metadata. P5 and P6 are judged at each write."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self.version = 0

    def moves(self) -> Sequence[Move]:
        return ()

    def act(self, move: Move) -> Answers:
        raise AssertionError(f"a store does nothing of its own accord, and not {move}")

    def serve(self, client: int, handle: Handle | None, request: object) -> Answers:
        written = None
        if isinstance(request, Write):
            written = request.version == self.version
            if written:
                self._write(request.metadata)
        else:
            assert isinstance(request, Look)
        return ((client, handle, Record(self.metadata, self.version, written)),)

    def _write(self, metadata: LedgerMetadata) -> None:
        if not _may_follow(self.metadata, metadata):
            raise Violation("P6", f"the metadata moved from {self.metadata.state.name} to {metadata.state.name}")
        if any(len(set(fragment.ensemble)) != len(fragment.ensemble) for fragment in metadata.fragments):
            raise Violation("P5", "an ensemble names a bookie twice")
        self.metadata, self.version = metadata, self.version + 1

    def ignores(self, request: object) -> bool:
        return isinstance(request, Look) or (isinstance(request, Write) and request.version < self.version)


def _may_follow(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """P6: which states follow which; of an unbounded ledger at which term."""
    if before.state is LedgerState.CLOSED:
        return False
    if before.terms is None or after.terms is None:
        return before.state is LedgerState.OPEN or after.state is LedgerState.CLOSED
    begins = after.state is LedgerState.IN_RECOVERY
    opens = before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.OPEN
    return after.terms.term == before.terms.term + begins and (before.state is LedgerState.OPEN or begins or opens)
