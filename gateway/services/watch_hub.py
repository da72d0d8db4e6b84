"""Who watches what through this gateway: pure bookkeeping between client streams and one store listener a ledger.

Things: a *stream* is one client's Watch stream; a *subscription* is one ledger on one stream; a ledger is *wanted*
while it has a subscription, and then the caller keeps exactly one store listener for it, however many streams ask (M7).

Events in: `subscribe`, `unsubscribe`, `close_stream`, `state` (what the store's listener said). Out: the return values
say whose outbox got something; `take` gives the next answer of a stream when its reader has room. An outbox holds
ledger ids, not answers: what is sent is the newest state at the moment of sending, so a slow reader costs memory a
subscription, never a change (conflation), and what was unsubscribed or subscribed anew meanwhile is not sent.

Invariants: answers of one subscription have strictly growing versions (M1) - but for the first, which is sent whenever
the stored version differs from the one the client named; the newest state is always in the outbox or sent (M2); a
removal is sent exactly once and ends the subscription - one that a new subscription to the same ledger overtakes is
not sent, since the new one will say how it is; after `close_stream` nothing of the stream is left. A state that can't
be read (`DAMAGED`) is told once, as one more state, and whatever can be read after it is news.

Not its job: reading the store, writing to streams, time (bookmarks).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from bookgate.ledger.ledger_id import LedgerId

StreamId = Hashable

DAMAGED = -1
"""The version of a state that is stored and can't be read; versions of others begin at 0."""


class LedgerState(Protocol):
    """What the hub must know of a ledger's state; what else is in it is the caller's business."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def version(self) -> int: ...

    @property
    def incarnation(self) -> int | None: ...


class Answer(NamedTuple):
    """What a client is told of a ledger; no record: it is gone."""

    ledger_id: LedgerId
    record: LedgerState | None


class TooManySubscriptions(Exception):
    """The stream is at its limit."""


class _Subscription:
    __slots__ = ("incarnation", "version")

    def __init__(self, version: int | None, incarnation: int | None) -> None:
        self.version = version
        """The last one that the client has seen."""
        self.incarnation = incarnation
        """Of the ledger of which it has seen that, where it said so."""

    def is_of_another(self, incarnation: int | None) -> bool:
        """Whether the ledger that the client saw is gone, and this one only has its id."""
        return None not in (incarnation, self.incarnation) and incarnation != self.incarnation

    def wants(self, version: int) -> bool:
        """Whether a state of this version is news. States of one ledger only grow, so another one is a newer one."""
        return version != self.version


class _Stream:
    __slots__ = ("outbox", "removed", "subscriptions")

    def __init__(self) -> None:
        self.subscriptions: dict[LedgerId, _Subscription] = {}
        # Insertion-ordered sets: who waited longest goes first.
        self.outbox: dict[LedgerId, None] = {}
        self.removed: dict[LedgerId, None] = {}


class _Ledger:
    __slots__ = ("epoch", "record", "streams")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.record: LedgerState | None = None
        self.streams: dict[StreamId, _Subscription] = {}


class WatchHub:
    """The subscriptions of one gateway. Not for several threads."""

    def __init__(self, max_subscriptions: int = 100_000) -> None:
        """`max_subscriptions`: of one stream."""
        self._max_subscriptions = max_subscriptions
        self._streams: dict[StreamId, _Stream] = {}
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self._epoch = 0

    def epoch(self, ledger_id: LedgerId) -> int | None:
        """Names the stretch of time since which a ledger is wanted without a break; None: it is not.

        A new stretch knows no state: the store's listener must be asked for it again.
        """
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.epoch

    def version(self, ledger_id: LedgerId) -> int | None:
        """Of the newest state that is known; None: none is."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None or ledger.record is None else ledger.record.version

    @property
    def ledger_count(self) -> int:
        """How many ledgers are wanted."""
        return len(self._ledgers)

    @property
    def subscription_count(self) -> int:
        """How many subscriptions all streams have together."""
        return sum(len(stream.subscriptions) for stream in self._streams.values())

    def open_stream(self, stream_id: StreamId) -> None:
        self._streams[stream_id] = _Stream()

    def close_stream(self, stream_id: StreamId) -> list[LedgerId]:
        """Forgets a stream; returns the ledgers it had subscriptions for, be they over."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return []
        for ledger_id in stream.subscriptions:
            self._leave(stream_id, ledger_id)
        return [*stream.subscriptions, *stream.removed]

    def subscribe(
        self, stream_id: StreamId, ledger_id: LedgerId, version: int | None, incarnation: int | None = None
    ) -> bool:
        """Subscribes, or replaces the subscription; true if there is something to take at once.

        `version`: the last one the client has seen, of the ledger `incarnation`. Raises TooManySubscriptions.
        """
        stream = self._streams[stream_id]
        if ledger_id not in stream.subscriptions and len(stream.subscriptions) >= self._max_subscriptions:
            raise TooManySubscriptions(f"a Watch stream carries at most {self._max_subscriptions} subscriptions")
        subscription = _Subscription(version, incarnation)
        stream.subscriptions[ledger_id] = subscription
        stream.outbox.pop(ledger_id, None)
        stream.removed.pop(ledger_id, None)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self._epoch += 1
            ledger = self._ledgers[ledger_id] = _Ledger(self._epoch)
        ledger.streams[stream_id] = subscription
        return ledger.record is not None and self._notice(stream_id, subscription, ledger.record)

    def unsubscribe(self, stream_id: StreamId, ledger_id: LedgerId) -> None:
        """Ends a subscription; unknown ones are ignored. Nothing of it is sent afterwards."""
        stream = self._streams[stream_id]
        stream.outbox.pop(ledger_id, None)
        stream.removed.pop(ledger_id, None)
        if stream.subscriptions.pop(ledger_id, None) is not None:
            self._leave(stream_id, ledger_id)

    def state(self, ledger_id: LedgerId, record: LedgerState | None) -> list[StreamId]:
        """The store's newest state of a ledger (None: gone); returns the streams that have something to take."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return []
        if record is None:
            return self._remove(ledger_id, ledger)
        known = ledger.record
        if known is not None and (record.version == known.version or DAMAGED < record.version < known.version):
            return []
        ledger.record = record
        return [
            stream_id
            for stream_id, subscription in list(ledger.streams.items())
            if self._notice(stream_id, subscription, record)
        ]

    def take(self, stream_id: StreamId) -> Answer | None:
        """The next answer for a stream, taken out of its outbox; removals first."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        if stream.removed:
            ledger_id = next(iter(stream.removed))
            del stream.removed[ledger_id]
            return Answer(ledger_id, None)
        while stream.outbox:
            ledger_id = next(iter(stream.outbox))
            del stream.outbox[ledger_id]
            record = self._ledgers[ledger_id].record
            subscription = stream.subscriptions[ledger_id]
            # It may have become the version that the client has while it waited.
            if record is not None and subscription.wants(record.version):
                subscription.version = record.version
                return Answer(ledger_id, record)
        return None

    def removals(self, stream_id: StreamId) -> int:
        """How many removals wait to be taken: other than states, they are no subscription's any more."""
        return len(self._streams[stream_id].removed)

    def has_answers(self, stream_id: StreamId) -> bool:
        """Whether `take` may give something."""
        stream = self._streams.get(stream_id)
        return stream is not None and bool(stream.removed or stream.outbox)

    def _notice(self, stream_id: StreamId, subscription: _Subscription, record: LedgerState) -> bool:
        stream = self._streams[stream_id]
        if subscription.is_of_another(record.incarnation):
            del stream.subscriptions[record.ledger_id]
            stream.removed[record.ledger_id] = None
            self._leave(stream_id, record.ledger_id)
            return True
        if not subscription.wants(record.version):
            return False
        stream.outbox[record.ledger_id] = None
        return True

    def _remove(self, ledger_id: LedgerId, ledger: _Ledger) -> list[StreamId]:
        del self._ledgers[ledger_id]
        for stream_id in ledger.streams:
            stream = self._streams[stream_id]
            del stream.subscriptions[ledger_id]
            stream.outbox.pop(ledger_id, None)
            stream.removed[ledger_id] = None
        return list(ledger.streams)

    def _leave(self, stream_id: StreamId, ledger_id: LedgerId) -> None:
        ledger = self._ledgers[ledger_id]
        del ledger.streams[stream_id]
        if not ledger.streams:
            del self._ledgers[ledger_id]
