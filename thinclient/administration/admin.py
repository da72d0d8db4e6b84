"""An operator's client: bookies, their garbage collection, auto-recovery, and where the replicas of ledgers are.

It does what the commands of `bookgate bookie`, `gc` and `autorecovery` do, for programs. What concerns one bookie goes
over its HTTP admin, whose address its registration tells.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from bookgate.ledger import replication_control as control
from bookgate.ledger.entry_availability import decode_runs
from bookgate.ledger.errors import BKException, IllegalOpException, NoSuchLedgerExistsException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.ledger.replication_checks import Check, order_check
from bookgate.ledger.replication_survey import Survey, survey
from bookgate.ledger.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    Status,
)
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.copy_check import held_ranges
from bookgate.thinclient.handles.context import ledger_id_of, status_error
from bookgate.thinclient.handles.opening_call import opens
from bookgate.thinclient.metadata_source import metadata_factory, metadata_uri
from bookgate.thinclient.tools import collection
from bookgate.thinclient.tools.admin_client import AdminHttp, admin_url
from bookgate.thinclient.tools.collection import GC_DETAILS, SuspendedGc
from bookgate.thinclient.tools.draining import DrainingProgress, Emptied, decommission, look
from bookgate.thinclient.tools.renaming import BookieRenaming, rename_bookie


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """Bytes on the disks of a bookie's ledger directories."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """Auto-recovery at a moment."""

    enabled: bool
    auditor: str | None
    """Bookie id of the auditor in office."""
    lost_bookie_delay_seconds: int | None
    """How long a bookie may be away before its ledgers are marked; None: as the auditor's settings say."""
    survey: Survey


@dataclass(frozen=True, slots=True)
class UnderReplicated:
    """A ledger that is marked for repair."""

    ledger_id: LedgerId
    missing_replicas: tuple[str, ...]
    """Bookies whose copies are missing; none where it is only misplaced, or damaged."""
    marked_ms: int | None
    """Since when, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What one bookie of a ledger's fragment holds of it."""

    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    missing: tuple[tuple[int, int], ...]
    """Runs of entries (first, last) that it should hold and has not."""
    error: BKException | None = None
    """Why it could not be asked; `missing` is empty then."""


class Admin:
    """An operator's client of one cluster. It belongs to the event loop it was created on; close it, or use it as an
    async context manager.
    """

    def __init__(self, factory: LedgerManagerFactory, config: ClientConfig, http_token: str | None = None) -> None:
        """Called by `connect`."""
        self._factory = factory
        # Only protocol v3 can ask a bookie about itself, whatever the client speaks otherwise.
        self._config = config.model_copy(update={"wire_protocol": "v3"})
        self._token = http_token
        self._pool = BookiePool.of(self._config, factory.service_discovery, tcp_connector, random.SystemRandom())
        self._closed = False
        self._uri = ""

    @classmethod
    @opens
    async def connect(
        cls, gateways: str | None = None, config: ClientConfig | None = None, http_token: str | None = None
    ) -> Self:
        """Connects to a cluster.

        Args:
            gateways: As for `BookKeeper.connect`.
            config: The client's configuration; None uses the defaults.
            http_token: The token of the bookies' HTTP admin, for changes.

        Raises:
            MetaStoreException: No gateway responds, or the store is unreachable.
            IncorrectParameterException: The address is invalid.
        """
        config = config or ClientConfig()
        factory = metadata_factory(gateways, config)
        try:
            await factory.initialize()
            admin = cls(factory, config, http_token)
            admin._uri = metadata_uri(gateways, config)
            return admin
        except BaseException:
            await factory.close()
            raise

    def __repr__(self) -> str:
        return f"<Admin {self._uri or 'of given parts'}, {'closed' if self._closed else 'open'}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        if not self._closed:
            self._closed = True
            await self._pool.close_and_wait()
            await self._factory.close()

    # Bookies

    async def bookies(self) -> Sequence[RegisteredBookie]:
        """All bookies of the cluster, ordered by id, also those known by their cookie only."""
        return await self._factory.service_discovery.bookies(BookieSet.ALL)

    async def bookie_space(self, bookie_id: str) -> BookieSpace:
        """Asks a bookie for the room on its disks. Raises BKException."""
        request = GetBookieInfoRequest(self._pool.next_txn_id(), FREE_DISK_SPACE | TOTAL_DISK_CAPACITY)
        timeout = self._config.read_timeout_seconds
        answer = await self._pool.request(bookie_id, Operation.GET_BOOKIE_INFO, request, timeout)
        if not isinstance(answer, GetBookieInfoResponse) or answer.status != Status.EOK:
            raise IllegalOpException(f"bookie {bookie_id} refuses to tell its space (status {answer.status})")
        return BookieSpace(answer.total_disk_capacity or 0, answer.free_disk_space or 0)

    async def bookie_state(self, bookie_id: str) -> dict[str, Any]:
        """Whether a bookie runs, is read-only or shuts down, as `/api/v1/bookie/state` tells it."""
        return dict(await self._get(bookie_id, "/api/v1/bookie/state"))

    async def set_read_only(self, bookie_id: str, read_only: bool) -> None:
        """Makes a bookie read-only, or writable again. Raises AdminRefusedException."""
        await self._put(bookie_id, "/api/v1/bookie/state/readonly", {"readOnly": read_only})

    # Garbage collection

    async def gc_status(self, bookie_id: str) -> list[dict[str, Any]]:
        """What garbage collection does and did, an object a storage directory (`/api/v1/bookie/gc_details`)."""
        return list(await self._get(bookie_id, GC_DETAILS))

    async def trigger_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, force_ledgers: bool = False
    ) -> None:
        """Collects garbage now; with `major` or `minor` that compaction runs whether it is due or not.

        With `force_ledgers` ledgers without metadata go at once, however many: for when you know that the metadata is
        right.
        """
        admin = await self._http(bookie_id)
        await asyncio.to_thread(
            partial(collection.trigger, admin, major=major, minor=minor, force_ledgers=force_ledgers)
        )

    async def gc_suspended(self, bookie_id: str) -> SuspendedGc:
        """What of garbage collection a bookie does not do until it is resumed."""
        return await asyncio.to_thread(collection.suspended, await self._http(bookie_id))

    async def suspend_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, ledgers: bool = False
    ) -> SuspendedGc:
        """Suspends compaction, both kinds unless one is named; with `ledgers` the deletion of ledgers instead.

        Returns:
            What is suspended now.
        """
        return await self._change_gc(bookie_id, "suspend", major, minor, ledgers)

    async def resume_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, ledgers: bool = False
    ) -> SuspendedGc:
        """Resumes compaction, both kinds unless one is named; with `ledgers` the deletion of ledgers instead.

        Returns:
            What is suspended now.
        """
        return await self._change_gc(bookie_id, "resume", major, minor, ledgers)

    async def _change_gc(
        self, bookie_id: str, verb: Literal["suspend", "resume"], major: bool, minor: bool, ledgers: bool
    ) -> SuspendedGc:
        admin = await self._http(bookie_id)
        return await asyncio.to_thread(
            partial(collection.change, admin, verb, major=major, minor=minor, ledgers=ledgers)
        )

    async def compact_index(self, bookie_id: str, paths: Sequence[str] | None = None) -> list[str]:
        """Compacts the indexes of a bookie that keeps them in RocksDB. Returns their paths once it has begun.

        Args:
            bookie_id: The bookie.
            paths: Only these indexes; None compacts all.

        Raises:
            AdminRefusedException: The bookie's index is not RocksDB.
        """
        return await asyncio.to_thread(collection.compact_index, await self._http(bookie_id), paths)

    # Auto-recovery

    async def recovery_status(self) -> RecoveryStatus:
        """Whether auto-recovery is enabled, who is auditor, and how much is marked: one listing of all marks."""
        store = self._factory.replication_metadata
        return RecoveryStatus(
            await store.is_enabled(), await store.auditor(), await store.lost_bookie_delay(), await survey(store)
        )

    async def enable_recovery(self, enabled: bool = True) -> bool:
        """Switches auto-recovery on or off for the whole cluster. Returns False where it was so already."""
        return await control.switch(self._factory.replication_metadata, enabled)

    async def set_lost_bookie_delay(self, seconds: int) -> None:
        """Sets how long a bookie may be away before its ledgers are marked."""
        await self._factory.replication_metadata.set_lost_bookie_delay(seconds)

    async def trigger_audit(self, check: Literal["replicas", "placement", "scrub"] | None = None) -> str:
        """Makes the auditor look for lost bookies now, or begin a check.

        Args:
            check: Whether bookies hold what the metadata say (`replicas`), whether ledgers lie as the placement policy
                wants them (`placement`), or whether the digests of all copies are right (`scrub`).

        Returns:
            The auditor's bookie id.

        Raises:
            IllegalOpException: There is no auditor, or auto-recovery is disabled.
        """
        store = self._factory.replication_metadata
        return await (control.order_audit(store) if check is None else order_check(store, Check(check)))

    async def under_replicated(
        self, missing: str | None = None, not_missing: str | None = None
    ) -> AsyncGenerator[list[UnderReplicated], None]:
        """Lists the ledgers that are marked for repair.

        Args:
            missing: Only those that lack the copies of this bookie.
            not_missing: Only those that do not.

        Yields:
            Pages of ledgers, which may be empty.
        """
        async for page in control.marks_of(self._factory.replication_metadata, missing, not_missing):
            yield [
                UnderReplicated(
                    LedgerId.of_number(mark.value.ledger_id), tuple(mark.value.replicas), mark.value.ctime_ms
                )
                for mark in page
            ]

    async def begin_draining(self, bookie_id: str) -> bool:
        """Has auto-recovery move all ledgers from a bookie to others. Returns False where that was asked for before."""
        return await control.begin_draining(self._factory, bookie_id, int(time.time() * 1000))

    async def end_draining(self, bookie_id: str) -> bool:
        """Takes `begin_draining` back. Returns False where it was not asked for."""
        return await control.end_draining(self._factory.replication_metadata, bookie_id)

    async def draining(self, bookie_id: str) -> DrainingProgress:
        """Which ledgers name a bookie, and what keeps them there: one listing of all ledgers."""
        return await look(self._factory, bookie_id)

    async def decommission(self, bookie_id: str, *, force: bool = False) -> Emptied:
        """Takes a stopped bookie out of the cluster: waits until no ledger names it, then removes its cookie.

        Args:
            bookie_id: The bookie.
            force: Ledgers that can't be moved, since entries of them have no copy left, are given up: they still name
                the bookie, and what is recorded of each tells so.

        Returns:
            How many ledgers were moved meanwhile, and which were given up.

        Raises:
            IllegalOpException: It is registered, nobody works on it, or, without `force`, what is left has no copies to
                be moved.
        """
        emptied, _ = await decommission(self._factory, bookie_id, lambda _look, _estimate: None, force=force)
        return emptied

    async def rename_bookie(
        self, old: str, new: str, *, limit: int | None = None, rate: float = 5.0, dry_run: bool = False
    ) -> BookieRenaming:
        """Writes another bookie id into the metadata of all ledgers that name the old one. It moves no entries.

        For a bookie that keeps its data and gets another id. Stop it first; then update its cookie and start it.

        Args:
            old: The id that ledgers name now.
            new: The id to name instead.
            limit: Change at most so many ledgers.
            rate: Ledgers to change a second.
            dry_run: Only count.

        Returns:
            How many ledgers were changed, and which were not.

        Raises:
            IllegalOpException: The bookie `old` is registered.
        """
        return await rename_bookie(self._factory, self._config, old, new, limit=limit, rate=rate, dry_run=dry_run)

    # Replicas

    async def replicas(self, ledger_id: int | LedgerId) -> list[Replicas]:
        """Asks the bookies of a ledger which entries they hold, and compares with what they should.

        Args:
            ledger_id: The ledger. Of one that is not closed only the complete fragments are looked at.

        Returns:
            One object for each bookie of each fragment, in order.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no such ledger.
        """
        record = await self._factory.ledger_manager.read(ledger_id_of(ledger_id))
        metadata = record.metadata
        bookies = sorted(metadata.bookies)
        held = await asyncio.gather(*(self._held(record.ledger_id, each) for each in bookies))
        by_bookie = dict(zip(bookies, held, strict=True))
        ends = [*(each.first_entry_id - 1 for each in metadata.fragments[1:]), metadata.last_entry_id]
        found = []
        for fragment, end in zip(metadata.complete_fragments, ends, strict=False):
            for index, bookie_id in enumerate(fragment.ensemble):
                runs = by_bookie[bookie_id]
                wanted = held_ranges(
                    metadata.ensemble_size, metadata.write_quorum_size, index, fragment.first_entry_id, end
                )
                missing = () if isinstance(runs, BKException) else tuple(_without(wanted, runs))
                error = runs if isinstance(runs, BKException) else None
                found.append(Replicas(bookie_id, fragment.first_entry_id, end, missing, error))
        return found

    async def _held(self, ledger_id: LedgerId, bookie_id: str) -> list[tuple[int, int]] | BKException:
        """Runs (first, last) in ascending order; none for a bookie that does not know the ledger."""
        request = ListEntriesRequest(self._pool.next_txn_id(), ledger_id.number)
        try:
            answer = await self._pool.request(
                bookie_id, Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, request, self._config.read_timeout_seconds
            )
            if answer.status == Status.ENOLEDGER:
                return []
            if not isinstance(answer, ListEntriesResponse) or answer.status != Status.EOK:
                return status_error(answer.status, bookie_id, ledger_id, "the list of entries")
            return sorted((first, first + count - 1) for first, count in decode_runs(answer.availability or b""))
        except NoSuchLedgerExistsException:
            return []
        except (BKException, ValueError) as error:
            return error if isinstance(error, BKException) else IllegalOpException(f"bookie {bookie_id}: {error}")

    # HTTP

    async def _http(self, bookie_id: str) -> AdminHttp:
        url = await admin_url(self._factory.service_discovery, bookie_id)
        return AdminHttp(url, self._token, self._config.bookie_tls_ca or self._config.tls_ca)

    async def _get(self, bookie_id: str, path: str) -> Any:
        admin = await self._http(bookie_id)
        return await asyncio.to_thread(admin.get, path)

    async def _put(self, bookie_id: str, path: str, body: dict[str, Any] | None) -> Any:
        admin = await self._http(bookie_id)
        return await asyncio.to_thread(admin.put, path, body)


def _without(wanted: Any, held: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs of `wanted` that no run of `held` covers; both ascending, ends included."""
    missing = []
    for first, last in wanted:
        at = first
        for start, end in held:
            if end < at:
                continue
            if start > last:
                break
            if start > at:
                missing.append((at, start - 1))
            at = end + 1
        if at <= last:
            missing.append((at, last))
    return missing
