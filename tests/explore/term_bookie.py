"""A bookie that honours terms, around the product's ledger state; it crashes and is up again at once.

U1 is judged here: a request is served whose term is below one that the bookie has answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from bookgate.bookie.index.terms import Terms
from bookgate.bookie.storage.ledger_state import BookieLedgerState
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, InvalidTermException, ReadException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.wire.messages import Status
from bookgate.thinclient.core.recovery_reads import Missing
from bookgate.thinclient.core.unbounded.adds import Horizon
from tests.explore.letters import Handle, Move, Violation
from tests.explore.servers import LEDGER

_KEY = b"key"
Answers = Sequence[tuple[int, Handle | None, object]]


class TermAdd(NamedTuple):
    """Store an entry; with `truncate` delete every higher one."""

    term: int
    entry: Entry
    lafr: int
    recovery: bool
    truncate: bool

    def __str__(self) -> str:
        kind = f"{'recovery ' if self.recovery else ''}add {'and truncate ' if self.truncate else ''}"
        entry = self.entry
        horizon = f"LAC {entry.last_add_confirmed}, LAFR {self.lafr}"
        return f"{kind}{entry.entry_id} {entry.payload.decode()!r} at term {self.term} ({horizon})"


class TermFence(NamedTuple):
    """Take this term, and tell LAC and LAFR."""

    term: int


class TermRead(NamedTuple):
    """Take this term, and read."""

    term: int
    entry_id: int
    following: int = 0


class AtTerm(NamedTuple):
    """An answer; `value` is None for an entry stored."""

    term: int
    value: Horizon | Entry | Missing | BKException | None
    following: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        value = type(self.value).__name__ if isinstance(self.value, BKException) else self.value or "stored"
        return f"{value} at term {self.term}"


Request = TermAdd | TermFence | TermRead


class TermBookie:
    """One bookie and its unbounded ledger."""

    def __init__(self, *, syncs_apart: bool) -> None:
        self.syncs_apart = syncs_apart
        self.up = True
        self.ledger = BookieLedgerState(LEDGER, _KEY)
        self.entries: dict[int, Entry] = {}
        self.durable: dict[int, Entry] = {}
        self.durable_terms: Terms | None = None
        self.waiting: list[tuple[int, Handle | None, Request]] = []
        self.answered_term = 0

    def moves(self) -> Sequence[Move]:
        return (("sync",),) if self.waiting else ()

    def act(self, move: Move) -> Answers:
        assert move == ("sync",)
        return self._sync()

    def crash(self) -> None:
        """Memory is lost; the bookie starts again."""
        self.waiting = []
        self.entries = dict(self.durable)
        self.ledger = BookieLedgerState(LEDGER, _KEY)
        if self.durable_terms is not None:
            self.ledger.take_terms(self.durable_terms)

    def serve(self, client: int, handle: Handle | None, request: object) -> Answers:
        assert isinstance(request, TermAdd | TermFence | TermRead)
        refused = self._refusal(request)
        if refused is not None:
            return ((client, handle, AtTerm(request.term, refused)),)
        if request.term < self.answered_term:
            raise Violation("U1", f"a bookie that answered term {self.answered_term} serves term {request.term}")
        self.ledger.raise_term(request.term, takes_over=not isinstance(request, TermAdd) or request.recovery)
        if isinstance(request, TermAdd):
            self._store(request)
        self.waiting.append((client, handle, request))
        return () if self.syncs_apart else self._sync()

    def _refusal(self, request: Request) -> BKException | None:
        if isinstance(request, TermAdd):
            status = self.ledger.check_add(_KEY, recovery=request.recovery, term=request.term)
            if status is Status.EOK and request.truncate:
                status = self.ledger.check_truncate(request.entry.entry_id)
        else:
            status = self.ledger.check_term(request.term)
        if status is Status.EOK:
            return None
        return InvalidTermException() if status is Status.EINVALIDTERM else ReadException(status.name)

    def _store(self, add: TermAdd) -> None:
        self.ledger.lafr = max(self.ledger.lafr, add.lafr)
        self.ledger.advance_lac(add.entry.last_add_confirmed)
        if add.truncate:
            self.entries = {key: entry for key, entry in self.entries.items() if key < add.entry.entry_id}
        self.entries[add.entry.entry_id] = add.entry

    def _sync(self) -> Answers:
        self.durable, self.durable_terms = dict(self.entries), self.ledger.terms
        waiting, self.waiting = self.waiting, []
        return [(client, handle, self._answer(request)) for client, handle, request in waiting]

    def _answer(self, request: Request) -> AtTerm:
        self.answered_term = max(self.answered_term, request.term)
        if isinstance(request, TermAdd):
            return AtTerm(request.term, None)
        if isinstance(request, TermFence):
            return AtTerm(request.term, Horizon(self.ledger.known_lac, self.ledger.lafr))
        found = self.entries.get(request.entry_id, Missing.MISSING)
        behind = range(request.entry_id + 1, request.entry_id + 1 + request.following)
        run = [] if found is Missing.MISSING else itertools.takewhile(bool, map(self.entries.get, behind))
        return AtTerm(request.term, found, tuple(entry for entry in run if entry is not None))

    def ignores(self, request: object) -> bool:
        assert isinstance(request, TermAdd | TermFence | TermRead)
        terms = self.durable_terms
        if terms is None or self.waiting:
            return False
        return request.term < terms.term or (not isinstance(request, TermAdd) and request.term == terms.term)

    def shown(self, entry_id: int) -> Entry | None:
        """What a normal read gets."""
        entry = self.entries.get(entry_id)
        return entry if entry is not None and self.ledger.shows(entry_id, NO_ENTRY) else None
