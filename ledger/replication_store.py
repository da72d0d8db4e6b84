"""The interface of auto-recovery's metadata: marks, locks of ledgers, the auditor's election, switches and records.

Like the interfaces of `metadata_store`, whose `LedgerManagerFactory` provides it: every kind of store implements it, as
does the thin client over the ReplicationService of gateways. BookKeeper's auditors and workers use the same store.

Locks and votes belong to the process that made them, and end with its connection to the store for good: when a
ZooKeeper session or a lease is over, whoever held them is told (`LockLost`, `VoteState.LOST`) and has nothing any more.
What must happen under the lock goes through `write_ledger`, where the store itself checks the lock.

A ledger is named by its number (`bookgate.ledger.ledger_id`), so that none with a scope is ever taken for one without
(D1).

Invariants: a mark that was made again is never deleted by who saw the former one (R8); at most one holder of a ledger's
lock (R4); what an ended session or lease held has no effect after its end (R17).

Failures are exceptions of `bookgate.ledger.errors`. Any method raises MetaStoreException if the store is unreachable,
and one that changes something UnknownOutcomeException if its answer was lost; each lists its other exceptions.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException, MetadataVersionException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, Versioned
from bookgate.ledger.replication import PeriodicCheck, UnderreplicatedLedger

Mark = Versioned[UnderreplicatedLedger]
"""A mark and its version, which every mark of the same ledger raises, also after a deletion: none has that of another.
"""


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """A lock that `try_lock` has given. Two locks of a ledger, one after the other, are not equal."""

    ledger_id: int
    """The ledger's number."""
    token: str
    """Distinguishes it from every other lock; means something to the store only."""


class VoteState(enum.Enum):
    """What has become of a vote."""

    WAITING = "waiting"
    """Another candidate is auditor."""
    ELECTED = "elected"
    LOST = "lost"
    """The vote is gone, with the office if it had that. It is over: stand again for another one."""


VoteListener = Callable[[VoteState], None]
"""Called on the event loop with the state of a vote soon after it was cast, then after each change; LOST is the last.
"""


class AuditorVote(ABC):
    """A candidacy for auditor, from `ReplicationMetadata.stand_for_auditor`."""

    @property
    @abstractmethod
    def state(self) -> VoteState:
        """The last known state."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Takes the vote back; the listener is not called again. The next candidate becomes auditor."""


@dataclass(frozen=True, slots=True)
class MarksChanged:
    """There may be new marks; list them. Comes also when nothing is known to have changed, at intervals."""


@dataclass(frozen=True, slots=True)
class SwitchChanged:
    """Auto-recovery was enabled or disabled."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class DelayChanged:
    """The delay before a lost bookie's ledgers are marked was written, perhaps with the value that it had.

    BookKeeper's tools start an audit by writing the same value again. `seconds` is None while nobody has set it.
    """

    seconds: int | None


@dataclass(frozen=True, slots=True)
class DrainsChanged:
    """There may be other bookies that are to be emptied than before (`RecordKind.DRAINING_BOOKIE`)."""


@dataclass(frozen=True, slots=True)
class LockLost:
    """A lock of this process has ended without `release`."""

    lock: LedgerLock


ReplicationEvent = MarksChanged | SwitchChanged | DelayChanged | DrainsChanged | LockLost

ReplicationListener = Callable[[ReplicationEvent], None]
"""Called on the event loop: soon after it was added once with each of MarksChanged, SwitchChanged and DelayChanged,
then after each change. Changes that follow each other fast may be told as one.
"""


@dataclass(frozen=True, slots=True)
class FeedBegan:
    """From now on every change of a ledger is told. Of what had changed before nothing is known."""


@dataclass(frozen=True, slots=True)
class FeedLost:
    """Changes may go untold until the feed has begun again."""


@dataclass(frozen=True, slots=True)
class LedgersTouched:
    """These ledgers may have been created, changed or removed: read them. Told while the feed runs."""

    ledger_ids: Collection[int]
    """Numbers."""


LedgerFeedEvent = FeedBegan | FeedLost | LedgersTouched

LedgerFeedListener = Callable[[LedgerFeedEvent], None]
"""Called on the event loop: first with FeedBegan, once the store can tell changes."""


class LedgerFeed(ABC):
    """Tells a listener which ledgers change, from `ReplicationMetadata.watch_ledgers` until `close`."""

    @abstractmethod
    async def catch_up(self) -> None:
        """Returns when the listener was told of every change that had happened when this was called.

        Raises:
            BKException: The store is out of reach.
        """

    @abstractmethod
    def close(self) -> None:
        """The listener is told nothing any more."""


class RecordKind(enum.Enum):
    """Small things that auditors and workers keep for each other. The value names the directory in the store."""

    MISSED_BOOKIE = "missed"
    """Key: a bookie id. Since when it has been missed."""
    DRAINING_BOOKIE = "draining"
    """Key: a bookie id that is to be emptied."""
    UNRECOVERABLE_LEDGER = "unrecoverable"
    """Key: a ledger's number in decimal. Why it can't be repaired."""
    CORRUPT_LEDGER = "corrupt"
    """Key: a ledger's number in decimal. Which of its copies a scrub found damaged."""
    TASK = "tasks"
    """Key: a ledger's number in decimal. What workers have begun of its repair."""
    CANDIDATE = "candidates"
    """Key: a bookie id that stands in votes. It is a process of Bookgate that casts them."""
    PROGRESS = "progress"
    """Key: the name of a task of the auditor. How far it has come."""
    SETTING = "settings"
    """Key: the name of a setting that all workers share, such as the cluster's budget."""


OF_LEDGERS_AND_BOOKIES = tuple(kind for kind in RecordKind if kind is not RecordKind.SETTING)
"""Kinds of records that mean nothing any more once a cluster has forgotten its ledgers and bookies."""

ANY_VERSION = -1

_KEY = re.compile(r"[A-Za-z0-9:._-]{1,255}")


def check_key(key: str) -> str:
    """Returns the key of a record unchanged. Raises IncorrectParameterException for one that no record can have."""
    if not _KEY.fullmatch(key) or key.strip(".") == "":
        raise IncorrectParameterException(f"{key!r} is no key of a record: letters, digits and : . _ - only")
    return key


def record_conflict(kind: RecordKind, key: str, expected_version: int | None) -> MetadataVersionException:
    """The error of a change whose expected version (None: that there is none) is not the stored one."""
    wanted = "there already" if expected_version is None else f"not at version {expected_version}"
    return MetadataVersionException(f"the record {kind.value}/{key} is {wanted}")


class ReplicationMetadata(ABC):
    """Auto-recovery's metadata; see the module."""

    # --- marks --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> Mark:
        """Marks a ledger as under-replicated, or adds to its mark. Always gives the mark a new version (R8).

        Args:
            ledger_id: The ledger.
            replicas: Bookies whose copies are missing; none if the ledger is only misplaced.
            ctime_ms: The time now, in milliseconds since 1970; None writes no time. A mark keeps its first time.

        Returns:
            The mark as it is stored now.

        Raises:
            MetadataFormatException: The mark in place can't be read; it is left as it is.
            IncorrectParameterException: No mark can carry this id.
        """

    @abstractmethod
    async def read_mark(self, ledger_id: int) -> Mark | None:
        """The mark of a ledger, or None.

        Raises:
            MetadataFormatException: The mark can't be read.
        """

    @abstractmethod
    def marks(self, start_after: int | None = None, page_size: int = 1000) -> AsyncIterator[Sequence[Mark]]:
        """Lists all marks in ascending order of their ledgers' numbers, as pages that are not empty.

        A mark that exists throughout the listing appears exactly once. A listing that can't be completed raises.

        Args:
            start_after: Lists only those above this number.
            page_size: Most marks on a page.

        Yields:
            Pages of marks.

        Raises:
            BKException: The listing can't be completed. MetadataFormatException for a mark that can't be read.
        """

    @abstractmethod
    async def delete_mark(self, ledger_id: int, expected_version: int) -> bool:
        """Deletes a mark if nobody has marked the ledger again since `expected_version`.

        Returns:
            True if there is no mark any more, False if it has another version and stays.
        """

    # --- locks --------------------------------------------------------------------------------------------------

    @abstractmethod
    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        """Takes the lock of a ledger, marked or not, unless it is held.

        If the answer is lost, the outcome is found out, or the lock given back: what raises has left no lock for good.

        Args:
            ledger_id: The ledger.
            holder: The host name of this process, for people who look.

        Returns:
            The lock, or None if anybody holds it, this process included.
        """

    @abstractmethod
    async def release(self, lock: LedgerLock) -> None:
        """Gives a lock back. Never takes away another's: a lock that is lost already is left alone.

        Raises:
            MetaStoreException: It could not be given back now. That is tried on until it succeeds or the lock ends.
        """

    @abstractmethod
    async def is_held(self, lock: LedgerLock) -> bool:
        """Asks the store whether this lock still stands."""

    @abstractmethod
    async def lock_holders(self) -> Mapping[int, str]:
        """All locks that anybody holds: the ledger's number, and the holder as it names itself."""

    @abstractmethod
    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata of the locked ledger, in one transaction with the check that the lock still stands.

        Args:
            lock: The lock of the ledger.
            metadata: The new metadata.
            expected_version: The version of the metadata that the caller has read.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            LockLostException: The lock is not this process's any more; nothing was written.
            MetadataVersionException: The stored version is another one; nothing was written.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The answer was lost; the metadata may or may not have been replaced.
        """

    # --- the auditor --------------------------------------------------------------------------------------------

    @abstractmethod
    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        """Casts a vote. The oldest vote's candidate is auditor; each is told when that is its own, and when it is lost.

        Args:
            voter: The bookie id of this process.
            listener: Told of each state of the vote.

        Returns:
            The vote.
        """

    @abstractmethod
    async def auditor(self) -> str | None:
        """The bookie id of the auditor; None while there is no candidate."""

    # --- switches, times, records -------------------------------------------------------------------------------

    @abstractmethod
    async def is_enabled(self) -> bool:
        """Whether auto-recovery is on for the whole cluster."""

    @abstractmethod
    async def set_enabled(self, enabled: bool) -> None:
        """Switches auto-recovery on or off for the whole cluster.

        Raises:
            IllegalOpException: It is so already.
        """

    @abstractmethod
    async def lost_bookie_delay(self) -> int | None:
        """Seconds from the loss of a bookie until its ledgers are marked; None while nobody has set it."""

    @abstractmethod
    async def set_lost_bookie_delay(self, seconds: int, *, only_if_absent: bool = False) -> int:
        """Writes the delay, also with the value that it has, which BookKeeper's auditor takes as the order to audit.

        Args:
            seconds: 0 or more.
            only_if_absent: A delay that is set already stays.

        Returns:
            The delay as it is set now, in seconds.
        """

    @abstractmethod
    async def check_time(self, check: PeriodicCheck) -> int | None:
        """When a periodic check last ended, in milliseconds since 1970; None: never."""

    @abstractmethod
    async def set_check_time(self, check: PeriodicCheck, ctime_ms: int) -> None:
        """Notes when a periodic check ended, in milliseconds since 1970."""

    @abstractmethod
    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        """All records of a kind, by their keys."""

    @abstractmethod
    async def read_record(self, kind: RecordKind, key: str) -> Versioned[bytes] | None:
        """One record, or None."""

    @abstractmethod
    async def write_record(self, kind: RecordKind, key: str, value: bytes, expected_version: int | None) -> int:
        """Creates or replaces a record.

        Args:
            kind: The kind.
            key: Letters, digits and `: . _ -`.
            value: The content.
            expected_version: The version that the caller has read; None creates the record; ANY_VERSION replaces
                whatever there is, or creates it.

        Returns:
            The version of the record as written.

        Raises:
            MetadataVersionException: The stored version is another one, or the record exists already.
        """

    @abstractmethod
    async def remove_record(self, kind: RecordKind, key: str, expected_version: int = ANY_VERSION) -> None:
        """Removes a record; one that is not there is fine.

        Raises:
            MetadataVersionException: The stored version is another one.
        """

    async def missed_since(self, bookie_id: str, now_ms: int) -> int:
        """When a bookie was first missed, in milliseconds since 1970: what any auditor noted first, else `now_ms`."""
        while True:
            found = await self.read_record(RecordKind.MISSED_BOOKIE, bookie_id)
            if found is not None and found.value.isdigit():
                return int(found.value)
            try:
                version = None if found is None else found.version
                await self.write_record(RecordKind.MISSED_BOOKIE, bookie_id, b"%d" % now_ms, version)
            except MetadataVersionException:
                continue
            return now_ms

    async def bookie_returned(self, bookie_id: str) -> None:
        """Forgets that a bookie was missed."""
        await self.remove_record(RecordKind.MISSED_BOOKIE, bookie_id)

    # --- changes ------------------------------------------------------------------------------------------------

    @abstractmethod
    def watch(self, listener: ReplicationListener) -> Callable[[], None]:
        """Tells `listener` of changes (`ReplicationListener`). Returns a function that ends that."""

    def watch_ledgers(self, listener: LedgerFeedListener) -> LedgerFeed | None:
        """Tells `listener` of every ledger that changes, whoever changes it.

        Returns:
            The feed; None for a store that has none. One that finds out later that it can't tell changes, such as a
            ZooKeeper server before 3.6, never tells FeedBegan.
        """
        return None
