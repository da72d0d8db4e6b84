"""Tailing: reading a ledger while it is written. Two pure parts, which `tail` runs.

`LongPollRead` is one wait for an entry at the bookies of the last ensemble. A long poll names P, the entry before the
wanted one. The bookie responds as soon as its LAC is above P, with that LAC and, if it holds it, the entry
("piggyback"), or with nothing new after a while. Bookies are polled one by one, beginning at the wanted entry's
position in the ensemble, recently failed ones last, or all at once (`parallel`). One by one, the next bookie is polled
when a response brings nothing new, is an error, or does not arrive in time (*speculation*: a first wait, then twice
that, up to a maximum). The wait ends

- with the first entry that arrives, or with the first LAC above P;
- with what is known when E - Qa + 1 bookies had nothing new: one of them would know of any acknowledged entry, except
  for what only the next add will announce;
- when more than E - Qa bookies said "no such entry or ledger" (in parallel at once), or all have responded:
  successfully if any response was valid, else with the retained error, where "not reachable" becomes "no such entry" if
  more than E - Qa said that;
- at once, with an error, when a bookie rejects the client, or the client is closed.

`TailSteps` decides what a tailing reader does next: read the range up to the LAC (with read-ahead and batches, however
far behind it is); else wait for the next entry, by long poll or by asking for the LAC at intervals; else end, when the
ledger is closed and delivered. After a failed wait it asks for the LAC, so that bookies without long polls can be
tailed too: its states are `TailState`, with the table `TAIL`. Waits that return immediately without news are paced.
Failures are reported when they have lasted for a while without any successful response.

Invariants: nothing above the LAC, nor above the sealed end, is requested or delivered (P10); every entry from the first
wanted on is delivered once, in order (P4).

Not its job: time (an argument, in seconds), packets, the metadata watch. Source:
docs/protocol/client-protocol.md#long-poll-for-an-entry.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import (
    BKException,
    BookieHandleNotAvailableException,
    DigestMatchException,
    EntryNotConfirmedException,
    IllegalOpException,
    LedgerTrimmedException,
    NoSuchEntryException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.transitions import Transitions
from bookgate.thinclient.core.entry_read import ENDS_AT_ONCE, MISSING, retained_error
from bookgate.thinclient.core.read_health import ReadHealth


class LastConfirmedAndEntry(NamedTuple):
    """The LAC, and the awaited entry if it arrived with it."""

    last_add_confirmed: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class PollTimes:
    """Seconds to wait for one bookie before another is polled too: at first, and at most (0: for ever)."""

    first: float = 1.5
    longest: float = 5.0


class LongPollRead:
    """One wait for one entry: takes responses, returns bookies to poll; over when `result` or `error` is set."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        entry_id: int,
        last_add_confirmed: int,
        *,
        parallel: bool = False,
        times: PollTimes | None = None,
        health: ReadHealth | None = None,
    ) -> None:
        """Waits for `entry_id`, which is above `last_add_confirmed`."""
        self.entry_id = entry_id
        self._lac = last_add_confirmed
        self._parallel = parallel
        self._times = times or PollTimes()
        self._health = ReadHealth() if health is None else health
        self._ensemble = metadata.last_fragment.ensemble
        self._may_miss = metadata.ensemble_size - metadata.ack_quorum_size
        self._to_ask: list[str] = []
        self._waiting: set[str] = set()
        self._empty = 0
        self._missing = 0
        self._valid = False
        self._retained: BKException | None = None
        self._delay = self._times.first
        self._next_time: float | None = None
        self.result: LastConfirmedAndEntry | None = None
        self.error: BKException | None = None

    @property
    def previous_lac(self) -> int:
        """The LAC above which a bookie responds."""
        return self.entry_id - 1

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def next_time(self) -> float | None:
        """When `on_time` is due."""
        return None if self.done else self._next_time

    def begin(self, now: float) -> Sequence[str]:
        """The bookies to poll first."""
        start = self.entry_id % len(self._ensemble)
        self._to_ask = list(self._health.ordered(self._ensemble[start:] + self._ensemble[:start], now))
        return self._ask(len(self._to_ask) if self._parallel else 1, now)

    def on_answer(self, bookie_id: str, max_lac: int, entry: Entry | None, now: float) -> Sequence[str]:
        """A bookie's LAC (-1: none in the response), and the entry (verified by the caller) if it was included."""
        if not self._answered(bookie_id):
            return ()
        self._valid = True
        self._lac = max(self._lac, max_lac)
        if entry is not None or self._lac >= self.entry_id:
            return self._finish(entry)
        self._empty += 1
        if self._empty > self._may_miss:
            return self._finish(None)
        return self._go_on(now)

    def on_error(self, bookie_id: str, error: BKException, now: float) -> Sequence[str]:
        """A bookie holds nothing of the ledger, is unreachable, or sent a damaged packet."""
        if not self._answered(bookie_id):
            return ()
        self._retained = retained_error(self._retained, error)
        if isinstance(error, ENDS_AT_ONCE):
            self.error = error
            return ()
        if isinstance(error, MISSING):
            self._missing += 1
            if self._parallel and self._missing > self._may_miss:
                return self._exhausted()
        elif not isinstance(error, IllegalOpException):
            self._health.failed(bookie_id, now)
        return self._go_on(now)

    def on_time(self, now: float) -> Sequence[str]:
        """Time has passed: the next bookie is polled as well."""
        if self.done or self._next_time is None or now < self._next_time:
            return ()
        self._delay = min(self._delay * 2, self._times.longest)
        return self._ask(1, now)

    def _answered(self, bookie_id: str) -> bool:
        if self.done or bookie_id not in self._waiting:
            return False
        self._waiting.discard(bookie_id)
        return True

    def _go_on(self, now: float) -> Sequence[str]:
        if self._to_ask:
            return self._ask(1, now)
        if not self._waiting:
            return self._exhausted()
        return ()

    def _ask(self, count: int, now: float) -> Sequence[str]:
        asked, self._to_ask = self._to_ask[:count], self._to_ask[count:]
        assert self._waiting.isdisjoint(asked), "a bookie is polled once"
        self._waiting.update(asked)
        speculates = bool(self._to_ask) and self._times.longest > 0 and self._delay > 0
        self._next_time = now + self._delay if speculates else None
        return asked

    def _finish(self, entry: Entry | None) -> Sequence[str]:
        self.result = LastConfirmedAndEntry(self._lac, entry)
        return ()

    def _exhausted(self) -> Sequence[str]:
        if self._valid:
            return self._finish(None)
        error = self._retained or NoSuchEntryException()
        if isinstance(error, BookieHandleNotAvailableException) and self._missing > self._may_miss:
            error = NoSuchEntryException(f"entry {self.entry_id} is not on the bookies that can be reached: {error}")
        self.error = error
        return ()


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read and deliver first … last."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Long poll for an entry."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the bookies for their LAC."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this many seconds, or until the metadata changes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The ledger is closed and every entry was delivered."""


Step = ReadRange | WaitFor | Look | Pause | Finished

_FINAL = (*ENDS_AT_ONCE, NoSuchLedgerExistsOnMetadataServerException, LedgerTrimmedException)
_LOST = (*MISSING, DigestMatchException)
"""Errors that waiting does not resolve in a closed ledger."""
_AT_ONCE = 0.05
"""A wait that ends without news within this many seconds did not really wait."""
_SHORTEST_PAUSE = 0.005


class TailState(enum.Enum):
    """How a tailing reader waits for the next entry."""

    POLLING = "by long polls"
    LOOKING_ONCE = "a wait has failed: by asking for the LAC, once"
    LOOKING = "by asking for the LAC at intervals"


class TailEvent(enum.Enum):
    """What moves a tailing reader from state to state."""

    WAITED = "a wait or a LAC read has succeeded, or the bookies hold nothing of the ledger yet"
    FAILED = "a step has failed, and is repeated"
    NO_LONG_POLLS = "the connection's protocol has no long polls"


TAIL = Transitions(
    TailState.POLLING,
    {
        TailState.POLLING: {
            TailEvent.WAITED: TailState.POLLING,
            TailEvent.FAILED: TailState.LOOKING_ONCE,
            TailEvent.NO_LONG_POLLS: TailState.LOOKING,
        },
        TailState.LOOKING_ONCE: {
            TailEvent.WAITED: TailState.POLLING,
            TailEvent.FAILED: TailState.LOOKING_ONCE,
            TailEvent.NO_LONG_POLLS: TailState.LOOKING,
        },
        TailState.LOOKING: {
            TailEvent.WAITED: TailState.LOOKING,
            TailEvent.FAILED: TailState.LOOKING,
            TailEvent.NO_LONG_POLLS: TailState.LOOKING,
        },
    },
)


class TailSteps:
    """Decides what a tailing reader does next."""

    def __init__(
        self, first: int, *, long_polls: bool = True, interval: float = 0.1, failure_timeout: float = 30.0
    ) -> None:
        """`interval`: seconds between two LAC reads; `failure_timeout`: seconds for which failures are tolerated."""
        self.position = first
        self.state = TAIL.initial if long_polls else TailState.LOOKING
        self._interval = interval
        self._failure_timeout = failure_timeout
        self._pause = 0.0
        self._resume_at = 0.0
        self._failing_since: float | None = None

    def next(self, last_add_confirmed: int, closed: bool, now: float) -> Step:
        """The next step, given what is known of the ledger now."""
        if self.position > last_add_confirmed and closed:
            return Finished()
        if now < self._resume_at and (self.position > last_add_confirmed or self._failing_since is not None):
            return Pause(self._resume_at - now)
        if self.position <= last_add_confirmed:
            return ReadRange(self.position, last_add_confirmed)
        return WaitFor(self.position) if self.state is TailState.POLLING else Look()

    def delivered(self, last: int) -> None:
        """All entries up to `last` have been delivered."""
        assert last >= self.position, "a tail moves forward only (P4)"
        self.position = last + 1
        self._pause = self._resume_at = 0.0
        self._failing_since = None

    def on_waited(self, last_add_confirmed: int, began: float, now: float) -> None:
        """A wait or a LAC read has succeeded."""
        self._failing_since = None
        waited_in = self.state
        self._on(TailEvent.WAITED)
        if last_add_confirmed >= self.position:
            self._pause = self._resume_at = 0.0
        elif waited_in is TailState.LOOKING:
            self._resume_at = now + self._interval
        elif waited_in is TailState.LOOKING_ONCE or now - began < _AT_ONCE:
            self._pause = min(max(self._pause * 2, _SHORTEST_PAUSE), self._interval)
            self._resume_at = now + self._pause

    def on_nothing_there(self, now: float) -> None:
        """The bookies hold nothing of the ledger yet, or do not know the entry to be confirmed."""
        self._failing_since = None
        self._on(TailEvent.WAITED)
        self._resume_at = now + self._interval

    def on_failure(self, error: BKException, closed: bool, now: float) -> None:
        """A step has failed. Raises the error if it is final, or if failures have lasted too long."""
        if isinstance(error, _FINAL) or (closed and isinstance(error, _LOST)):
            raise error
        if isinstance(error, IllegalOpException):
            self._on(TailEvent.NO_LONG_POLLS)
            return
        if isinstance(error, EntryNotConfirmedException):
            self.on_nothing_there(now)
            return
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self._failure_timeout:
            raise error
        self._on(TailEvent.FAILED)
        self._resume_at = now + self._interval

    def _on(self, event: TailEvent) -> None:
        self.state = TAIL.after(self.state, event)
