"""What a worker asks of single bookies: which entries they hold, to fence a ledger, to take a copy.

A copy is a recovery add of high priority: it passes a fence, and a bookie that has turned read-only takes it while it
has room for that. It is acknowledged when it is durable. Source: docs/protocol/auto-recovery.md#copying,
docs/protocol/wire.md#get_list_of_entries.

Not its job: which entries, and where to (`verdicts`, `repair`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from pyroaring import BitMap64

from bookgate.bookie.replication.verdicts import Copies, Holding, Unknown
from bookgate.ledger.entry import Entry, encode_entry
from bookgate.ledger.entry_availability import decode_runs
from bookgate.ledger.errors import BKException, ReadException, WriteException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.messages import (
    HIGH_PRIORITY,
    LAST_ENTRY,
    AddRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadRequest,
    Request,
    Response,
    Status,
)
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.context import LedgerSecrets, status_error

_NOTHING_HELD = (Status.ENOLEDGER, Status.ENOENTRY)
_READS_AT_ONCE = 16
_REFUSALS = (Status.EFENCED, Status.EREADONLY, Status.EUA, Status.EUNKNOWNLEDGERSTATE)
_TAKES_NO_COPY = (
    "it takes no copies of this ledger: it has deleted its own lately, is read-only, or knows another master key"
)


class TargetRefusesException(WriteException):
    """A bookie that was chosen takes no copies of this ledger; another one may."""


class Bookies:
    """Requests to single bookies of the cluster."""

    def __init__(self, pool: BookiePool, config: ClientConfig) -> None:
        self._pool = pool
        self._config = config

    async def copies(self, bookie_id: str, ledger_id: int, due: BitMap64) -> Copies:
        """What a bookie says that it holds of a ledger. Never raises: what can't be said is unknown.

        BookKeeper's bookies with sorted storage can't list a ledger's entries. Of such a one the first and the last of
        the ids that it is `due` to hold are read, as BookKeeper does, and where one of these is missing all of them.
        """
        request = ListEntriesRequest(self._pool.next_txn_id(), ledger_id)
        try:
            response = await self._request(bookie_id, Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, request)
        except BKException as error:
            return Unknown(str(error))
        if response.status in _NOTHING_HELD:
            return Holding(BitMap64())
        if response.status == Status.EUNKNOWNLEDGERSTATE:
            return Holding(BitMap64(), limbo=True)
        if response.status == Status.ETOOMANYREQUESTS:
            return Unknown("it is overloaded")
        if response.status != Status.EOK or not isinstance(response, ListEntriesResponse):
            return await self._probed(bookie_id, ledger_id, due)
        return _held(response.availability or b"")

    async def _probed(self, bookie_id: str, ledger_id: int, due: BitMap64) -> Copies:
        try:
            held = await self._read(bookie_id, ledger_id, {due.min(), due.max()} if due else ())
            if len(held) < min(2, len(due)):
                held = await self._read(bookie_id, ledger_id, due)
                return Holding(held)
        except BKException as error:
            return Unknown(str(error))
        return Holding(due)

    async def _read(self, bookie_id: str, ledger_id: int, ids: Iterable[int]) -> BitMap64:
        """Which of the ids it has. Raises BKException unless it says yes or no to each."""
        held, room = BitMap64(), asyncio.Semaphore(_READS_AT_ONCE)

        async def read(entry_id: int) -> None:
            request = ReadRequest(self._pool.next_txn_id(), ledger_id, entry_id)
            async with room:
                response = await self._request(bookie_id, Operation.READ_ENTRY, request)
            if response.status == Status.EOK:
                held.add(entry_id)
            elif response.status not in _NOTHING_HELD:
                raise status_error(response.status, bookie_id, LedgerId.unscoped(ledger_id), f"a read of {entry_id}")

        await all_of(read(entry_id) for entry_id in ids)
        return held

    async def fence(self, bookie_id: str, ledger_id: int, secrets: LedgerSecrets, *, in_limbo: bool = False) -> None:
        """Makes the bookie take no add of a writer for a ledger, be it one that it has not heard of (R9).

        A bookie fences first and then looks for the entry, so one with the right master key has fenced a ledger in
        limbo too. Whether its key is right shows when it takes a copy; `in_limbo` is for places that the bookie has.

        Raises:
            TargetRefusesException: The bookie will not take copies of this ledger.
            BKException: It is not fenced for certain.
        """
        request = ReadRequest(self._pool.next_txn_id(), ledger_id, LAST_ENTRY, True, secrets.master_key)
        response = await self._request(bookie_id, Operation.READ_ENTRY, request)
        status = response.status
        if status in (Status.EOK, *_NOTHING_HELD) or (in_limbo and status is Status.EUNKNOWNLEDGERSTATE):
            return
        if status in _REFUSALS:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        what = "the fence before a repair"
        raise status_error(status, bookie_id, LedgerId.unscoped(ledger_id), what, ReadException)

    async def add_copy(self, bookie_id: str, entry: Entry, secrets: LedgerSecrets) -> int:
        """Stores a copy of an entry durably; it is the entry as it was written, byte for byte.

        Returns:
            The size of the packet in bytes.

        Raises:
            TargetRefusesException: The bookie will not take copies of this ledger.
            BKException: The copy is not stored for certain.
        """
        packet = encode_entry(
            secrets.digest,
            entry.ledger_id,
            entry.entry_id,
            entry.last_add_confirmed,
            entry.length,
            entry.payload,
        )
        request = AddRequest(
            self._pool.next_txn_id(),
            entry.ledger_id,
            entry.entry_id,
            secrets.master_key,
            packet,
            recovery=True,
            priority=HIGH_PRIORITY,
        )
        response = await self._request(bookie_id, Operation.ADD_ENTRY, request)
        if response.status in _REFUSALS:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        if response.status != Status.EOK:
            what = f"a copy of entry {entry.entry_id}"
            raise status_error(response.status, bookie_id, LedgerId.unscoped(entry.ledger_id), what, WriteException)
        return len(packet)

    async def _request(self, bookie_id: str, operation: Operation, request: Request) -> Response:
        timeout = self._config.add_timeout if operation is Operation.ADD_ENTRY else self._config.read_timeout
        return await self._pool.request(bookie_id, operation, request, timeout)


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all side by side; when one fails the others end, too, and its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    except (Exception, asyncio.CancelledError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _held(availability: bytes) -> Copies:
    held = BitMap64()
    try:
        for first, count in decode_runs(availability):
            held.add_range(first, first + count)
    except (ValueError, OverflowError) as error:
        return Unknown(f"its list of entries can't be read: {error}")
    return Holding(held)
