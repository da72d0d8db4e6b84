"""Subscriptions of this gateway: pure bookkeeping between client streams and one store listener per ledger.

Terms: a *stream* is one client's Watch stream; a *subscription* is one ledger on one stream; a ledger is *wanted* while
it has a subscription, and then the caller keeps exactly one store listener for it, however many streams subscribe (M7).

Events in: `subscribe`, `unsubscribe`, `close_stream`, `state` (from the store's listener). Out: the return values name
the streams whose outbox received something; `take` returns the next response of a stream when its reader is ready. An
outbox holds ledger ids, not responses: what is sent is the latest state at the moment of sending. A slow reader
therefore costs memory per subscription, not per change (conflation), and nothing is sent for a ledger that was
unsubscribed or subscribed again meanwhile.

Invariants: responses of one subscription have strictly growing versions (M1), except for the first, which is sent
whenever the stored version differs from the one the client named; the latest state is always in the outbox or sent
(M2); a removal is sent exactly once and ends the subscription, unless a new subscription to the same ledger overtakes
it, which then reports the state itself; after `close_stream` nothing of the stream remains. A ledger that was removed
and created again with the same id is another incarnation, with a higher number: its state ends the subscriptions that
knew the former ledger with a removal, and no others. A state that can't be parsed (`DAMAGED`) is reported once, like
any other state, and any readable state after it is reported again.

Not its job: reading the store, writing to streams, time (bookmarks).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from bookgate.ledger.ledger_id import LedgerId

StreamId = Hashable

DAMAGED = -1
"""The version of a stored state that can't be parsed; valid versions begin at 0."""


class WatchedRecord(Protocol):
    """The fields of a ledger's state that the hub uses; the rest is opaque to it."""

    @property
    def ledger_id(self) -> LedgerId: ...

    @property
    def version(self) -> int: ...

    @property
    def incarnation(self) -> int | None: ...


class Answer(NamedTuple):
    """A response about one ledger; without a record the ledger was removed."""

    ledger_id: LedgerId
    record: WatchedRecord | None


class TooManySubscriptions(Exception):
    """The stream, or all streams together, have reached their limit of subscriptions."""


class _Subscription:
    __slots__ = ("incarnation", "version")

    def __init__(self, version: int | None, incarnation: int | None) -> None:
        self.version = version
        """The last version that the client has seen."""
        self.incarnation = incarnation
        """The incarnation of the ledger that had this version, if it is known."""

    def saw(self, record: WatchedRecord) -> None:
        self.version = record.version
        self.assume(record.incarnation)

    def assume(self, incarnation: int | None) -> None:
        """Records of which ledger the client has seen a version; unlike others, a damaged state does not tell."""
        if self.version is not None and incarnation is not None:
            self.incarnation = incarnation

    def is_of_another(self, incarnation: int | None) -> bool:
        """Whether the ledger that the client saw was removed and this is another one with its id."""
        return None not in (incarnation, self.incarnation) and incarnation != self.incarnation

    def wants(self, version: int) -> bool:
        """Whether a state of this version is new. Versions of one ledger only grow, so a different one is newer."""
        return version != self.version


class _Stream:
    __slots__ = ("outbox", "removed", "subscriptions")

    def __init__(self) -> None:
        self.subscriptions: dict[LedgerId, _Subscription] = {}
        # Insertion-ordered sets: the ledger that waited longest goes first.
        self.outbox: dict[LedgerId, None] = {}
        self.removed: dict[LedgerId, None] = {}


class _Ledger:
    __slots__ = ("epoch", "incarnation", "record", "streams")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.record: WatchedRecord | None = None
        self.incarnation: int | None = None
        """That of the latest state that could be parsed."""
        self.streams: dict[StreamId, _Subscription] = {}

    def takes(self, record: WatchedRecord) -> bool:
        """Whether a state is news, and not older than the known one."""
        known = self.record
        if known is None or record.version == DAMAGED:
            return known is None or known.version != DAMAGED
        return _comes_after(record.version, record.incarnation, known.version, self.incarnation)

    def is_succeeded_by(self, record: WatchedRecord) -> bool:
        """Whether a state is that of a later ledger with the same id."""
        return _comes_after(0, record.incarnation, 0, self.incarnation)


def _comes_after(version: int, incarnation: int | None, former: int, former_incarnation: int | None) -> bool:
    """Whether a version is later than a former one: incarnations of an id grow, and versions within each of them."""
    if incarnation is None or former_incarnation is None or incarnation == former_incarnation:
        return version > former
    return incarnation > former_incarnation


class WatchHub:
    """All subscriptions of one gateway. Not thread-safe."""

    def __init__(self, max_subscriptions_a_stream: int = 100_000, max_subscriptions: int = 1_000_000) -> None:
        """`max_subscriptions` is the limit of all streams together."""
        self._max_subscriptions_a_stream = max_subscriptions_a_stream
        self._max_subscriptions = max_subscriptions
        self._subscriptions = 0
        self._streams: dict[StreamId, _Stream] = {}
        self._ledgers: dict[LedgerId, _Ledger] = {}
        self._epoch = 0

    def epoch(self, ledger_id: LedgerId) -> int | None:
        """Identifies the period for which a ledger has been wanted without interruption, and has been the same one as
        far as its listener knows; None if it is not wanted.

        A new period needs a new listener at the store: what one of an earlier period tells does not count.
        """
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.epoch

    def lags(self, ledger_id: LedgerId, version: int, incarnation: int | None) -> bool:
        """Whether the known state is older than what a client has seen."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.record is None:
            return False
        return _comes_after(version, incarnation, ledger.record.version, ledger.incarnation)

    def record(self, ledger_id: LedgerId) -> WatchedRecord | None:
        """The latest known state, or None."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.record

    @property
    def ledger_count(self) -> int:
        """Number of wanted ledgers."""
        return len(self._ledgers)

    @property
    def subscription_count(self) -> int:
        """Number of subscriptions of all streams."""
        return self._subscriptions

    def subscribed(self, stream_id: StreamId) -> list[LedgerId]:
        """The ledgers that one stream has subscriptions for."""
        stream = self._streams.get(stream_id)
        return [] if stream is None else list(stream.subscriptions)

    def is_subscribed(self, stream_id: StreamId, ledger_id: LedgerId) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and ledger_id in stream.subscriptions

    def subscriptions_of(self, stream_id: StreamId) -> int:
        """Number of subscriptions of one stream."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else len(stream.subscriptions)

    def open_stream(self, stream_id: StreamId) -> None:
        self._streams[stream_id] = _Stream()

    def close_stream(self, stream_id: StreamId) -> list[LedgerId]:
        """Removes a stream; returns the ledgers it had subscriptions for, including ended ones."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return []
        self._subscriptions -= len(stream.subscriptions)
        assert self._subscriptions >= 0, "a subscription ends once"
        for ledger_id in stream.subscriptions:
            self._leave(stream_id, ledger_id)
        return [*stream.subscriptions, *stream.removed]

    def subscribe(
        self,
        stream_id: StreamId,
        ledger_id: LedgerId,
        version: int | None,
        incarnation: int | None = None,
        read: WatchedRecord | None = None,
    ) -> list[StreamId]:
        """Subscribes, or replaces the subscription; returns the streams that have something to take.

        `version` is the last one that the client has seen, of the ledger with `incarnation`. `read` is a state that was
        read for this subscription, in the present period, since the known one may be too old for it. Raises
        TooManySubscriptions.
        """
        stream = self._streams[stream_id]
        if ledger_id not in stream.subscriptions:
            self._make_room(stream)
        subscription = _Subscription(version, incarnation)
        stream.subscriptions[ledger_id] = subscription
        stream.outbox.pop(ledger_id, None)
        stream.removed.pop(ledger_id, None)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self._epoch += 1
            ledger = self._ledgers[ledger_id] = _Ledger(self._epoch)
        ledger.streams[stream_id] = subscription
        woken = [] if read is None else self._take_read(ledger, read)
        if stream_id not in woken and ledger.record is not None:
            woken += [stream_id] if self._notice(stream_id, subscription, ledger.record) else []
        return woken

    def _make_room(self, stream: _Stream) -> None:
        if len(stream.subscriptions) >= self._max_subscriptions_a_stream:
            raise TooManySubscriptions(
                f"a Watch stream carries at most {self._max_subscriptions_a_stream} subscriptions"
            )
        if self._subscriptions >= self._max_subscriptions:
            raise TooManySubscriptions(
                f"the Watch streams of this gateway carry at most {self._max_subscriptions} subscriptions together"
            )
        self._subscriptions += 1

    def unsubscribe(self, stream_id: StreamId, ledger_id: LedgerId) -> None:
        """Ends a subscription, after which nothing is sent for it; an unknown one is ignored."""
        stream = self._streams[stream_id]
        stream.outbox.pop(ledger_id, None)
        stream.removed.pop(ledger_id, None)
        if stream.subscriptions.pop(ledger_id, None) is not None:
            self._subscriptions -= 1
            self._leave(stream_id, ledger_id)

    def state(self, ledger_id: LedgerId, record: WatchedRecord | None) -> list[StreamId]:
        """Records the store's latest state of a ledger (None: removed); returns the streams that have something to
        take.
        """
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return []
        if record is None:
            return self._remove(ledger_id, ledger)
        if not ledger.takes(record):
            return []
        ledger.record = record
        if record.incarnation is not None:
            ledger.incarnation = record.incarnation
        return [
            stream_id
            for stream_id, subscription in list(ledger.streams.items())
            if self._notice(stream_id, subscription, record)
        ]

    def _take_read(self, ledger: _Ledger, record: WatchedRecord) -> list[StreamId]:
        """As `state`, for one that was read beside the store's listener.

        If it is of a later ledger with the id, a new period begins: the listener is that of the former ledger, and what
        it is still to report is its removal.
        """
        if ledger.is_succeeded_by(record):
            self._epoch += 1
            ledger.epoch = self._epoch
        return self.state(record.ledger_id, record)

    def take(self, stream_id: StreamId) -> Answer | None:
        """Removes the next response from a stream's outbox and returns it; removals come first."""
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
                subscription.saw(record)
                return Answer(ledger_id, record)
        return None

    def removals(self, stream_id: StreamId) -> int:
        """Number of removals in the outbox: unlike states, they no longer belong to a subscription."""
        return len(self._streams[stream_id].removed)

    def has_answers(self, stream_id: StreamId) -> bool:
        """Whether `take` may return a response."""
        stream = self._streams.get(stream_id)
        return stream is not None and bool(stream.removed or stream.outbox)

    def _notice(self, stream_id: StreamId, subscription: _Subscription, record: WatchedRecord) -> bool:
        if subscription.is_of_another(record.incarnation):
            self._end(stream_id, record.ledger_id)
            return True
        # A client that names none has seen the ledger that is there when it subscribes, as far as can be told.
        subscription.assume(record.incarnation)
        if not subscription.wants(record.version):
            return False
        self._streams[stream_id].outbox[record.ledger_id] = None
        return True

    def _remove(self, ledger_id: LedgerId, ledger: _Ledger) -> list[StreamId]:
        ended = list(ledger.streams)
        for stream_id in ended:
            self._end(stream_id, ledger_id)
        return ended

    def _end(self, stream_id: StreamId, ledger_id: LedgerId) -> None:
        """Ends a subscription with a removal."""
        stream = self._streams[stream_id]
        del stream.subscriptions[ledger_id]
        self._subscriptions -= 1
        assert self._subscriptions >= 0, "a subscription ends once"
        stream.outbox.pop(ledger_id, None)
        stream.removed[ledger_id] = None
        self._leave(stream_id, ledger_id)

    def _leave(self, stream_id: StreamId, ledger_id: LedgerId) -> None:
        ledger = self._ledgers[ledger_id]
        del ledger.streams[stream_id]
        if not ledger.streams:
            del self._ledgers[ledger_id]
