"""Records of repairs in progress, so that another worker can continue them (AR15, AR37).

The record of a marked ledger has the bookies chosen for its positions, which may already hold copies when a worker
dies, and the number of failed repairs. It is written at each choice and failure, under the ledger's lock, and removed
with the mark. It needs no read: a worker first tries to create it, and reads it only if that fails because another
worker had begun; that worker's choices then apply. A worker reads all records at its start and periodically, and
removes those without a mark. If a record can't be written, only its savings are lost.

Source: docs/protocol/auto-recovery.md#tasks. Not its job: choosing (`repair`), pauses (`repair_queue`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from bookgate.ledger.errors import BKException, MetadataVersionException
from bookgate.ledger.metadata_store import Versioned
from bookgate.ledger.replication_store import RecordKind, ReplicationMetadata
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_KIND = RecordKind.TASK
_SWEPT_SECONDS = 600.0
"""Seconds between two searches for records without a mark."""

Place = tuple[int, int]
"""The first entry of a fragment, and a position in its ensemble."""
Fresh = tuple[int, int, str, int | None]
"""A position, its bookie, and the incarnation of the ledger for which that was chosen."""


class Targets:
    """The bookies chosen for positions of one ledger, in memory."""

    def __init__(self, by_place: Mapping[Place, str] | None = None) -> None:
        self.by_place: dict[Place, str] = dict(by_place or {})
        self.failed_targets: set[str] = set()
        """Bookies that failed as targets of this ledger: others are chosen as long as there are any."""
        self._fresh: set[Fresh] = set()

    async def keep(self, place: Place, target: str, incarnation: int | None, *, fresh: bool) -> bool:
        """Records a target before it gets copies. False: another worker's choice applies, which is loaded now.

        Args:
            place: The position.
            target: The bookie chosen for it.
            incarnation: That of the ledger.
            fresh: Whether the bookie holds none of the entries yet.
        """
        self._choose(place, target, incarnation, fresh=fresh)
        return True

    def was_fresh(self, place: Place, target: str, incarnation: int | None) -> bool:
        """Whether the bookie held none of the entries when it was chosen, and so has them of this ledger: those of a
        deleted one that had the id look as good.
        """
        return (*place, target, incarnation) in self._fresh

    def _choose(self, place: Place, target: str, incarnation: int | None, *, fresh: bool) -> None:
        self.by_place[place] = target
        if fresh:
            self._fresh.add((*place, target, incarnation))


@dataclass(frozen=True, slots=True)
class _Record:
    targets: Mapping[Place, str] = field(default_factory=dict)
    failures: int = 0
    fresh: Collection[Fresh] = ()

    def encode(self) -> bytes:
        targets = [[first, index, bookie_id] for (first, index), bookie_id in sorted(self.targets.items())]
        fresh = sorted((list(each) for each in self.fresh if self.targets.get(each[:2]) == each[2]), key=str)
        told = {"failures": self.failures, "fresh": fresh, "targets": targets}
        return json.dumps(told, sort_keys=True).encode()

    @classmethod
    def decode(cls, record: bytes) -> _Record:
        """Decodes a record; one that can't be read is empty."""
        try:
            told = json.loads(record)
            targets = {(int(first), int(index)): str(bookie_id) for first, index, bookie_id in told["targets"]}
            fresh = [_fresh(*each) for each in told.get("fresh", ())]  # older versions record none
            return cls(targets, max(0, int(told["failures"])), fresh)
        except (ValueError, TypeError, KeyError):
            return cls()


def _fresh(first: int, index: int, bookie_id: str, incarnation: int | None) -> Fresh:
    return int(first), int(index), str(bookie_id), None if incarnation is None else int(incarnation)


class Task(Targets):
    """The record of one ledger, in the store."""

    def __init__(self, metadata: ReplicationMetadata, ledger_id: int, stored: Versioned[bytes] | None = None) -> None:
        super().__init__()
        self._metadata = metadata
        self._key = str(ledger_id)
        self._version: int | None = None
        self.failures = 0
        if stored is not None:
            self._take(stored)

    @property
    def is_stored(self) -> bool:
        return self._version is not None

    async def keep(self, place: Place, target: str, incarnation: int | None, *, fresh: bool) -> bool:
        self._choose(place, target, incarnation, fresh=fresh)
        try:
            if await self._write():
                return True
            if place in self.by_place:
                return self.by_place[place] == target
            self._choose(place, target, incarnation, fresh=fresh)
            await self._write()
        except BKException as error:
            self._not_kept(error)
        return True

    async def failed(self) -> None:
        """Records a further failed repair."""
        self.failures += 1
        try:
            if not await self._write():
                self.failures += 1
                await self._write()
        except BKException as error:
            self._not_kept(error)

    async def forget(self) -> None:
        """Removes the record, because the ledger is no longer marked."""
        if self.is_stored:
            self._version = None
            try:
                await self._metadata.remove_record(_KIND, self._key)
            except BKException as error:
                self._not_kept(error)

    async def _write(self) -> bool:
        """Writes the record. False: another worker has written or removed it, and the stored state applies now."""
        content = _Record(self.by_place, self.failures, self._fresh).encode()
        try:
            self._version = await self._metadata.write_record(_KIND, self._key, content, self._version)
            return True
        except MetadataVersionException:
            stored = await self._metadata.read_record(_KIND, self._key)
            if stored is None:
                self._version = None
                self._version = await self._metadata.write_record(_KIND, self._key, content, None)
                return True
            self._take(stored)
            return False

    def _take(self, stored: Versioned[bytes]) -> None:
        told = _Record.decode(stored.value)
        self.by_place, self._fresh = dict(told.targets), set(told.fresh)
        self.failures, self._version = told.failures, stored.version

    def _not_kept(self, error: BKException) -> None:
        log_event(_log, "repair_task_not_kept", logging.WARNING, ledger=self._key, error=error)


class Tasks:
    """The records that one worker uses."""

    def __init__(self, metadata: ReplicationMetadata) -> None:
        self._metadata = metadata
        self._known: dict[int, Task] = {}
        self._swept_at: float | None = None

    def of(self, ledger_id: int) -> Task:
        """The record of a ledger, new if necessary."""
        task = self._known.get(ledger_id)
        if task is None:
            task = self._known[ledger_id] = Task(self._metadata, ledger_id)
        return task

    async def done(self, ledger_id: int) -> None:
        """Removes the record of a ledger that is no longer marked."""
        task = self._known.pop(ledger_id, None)
        if task is not None:
            await task.forget()

    async def listed(self, marked: Collection[int]) -> bool:
        """Discards records of unmarked ledgers, at first and periodically in the store too; returns whether it has.

        Raises BKException.
        """
        for ledger_id in self._known.keys() - marked:
            del self._known[ledger_id]
        now = asyncio.get_running_loop().time()
        if self._swept_at is not None and now - self._swept_at < _SWEPT_SECONDS:
            return False
        for key, stored in (await self._metadata.records(_KIND)).items():
            if not key.isdigit() or int(key) not in marked:
                with suppress(MetadataVersionException):
                    await self._metadata.remove_record(_KIND, key, stored.version)
            elif int(key) not in self._known:
                self._known[int(key)] = Task(self._metadata, int(key), stored)
        self._swept_at = now
        return True
