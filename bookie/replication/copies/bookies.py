"""A worker's requests to single bookies: list the entries held, find damaged ones, fence a ledger, store copies.

A copy is a recovery add of high priority: it passes a fence, and a read-only bookie accepts it while it has space
reserved for this. It is acknowledged when it is durable. Source: docs/protocol/auto-recovery.md#copying,
docs/protocol/wire.md#get_list_of_entries.

Not its job: choosing entries and targets (`verdicts`, `repair`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.verdicts import Copies, Holding, Unknown
from bookgate.ledger.entry import Entry, decode_entry, encode_entry
from bookgate.ledger.entry_availability import decode_runs
from bookgate.ledger.errors import (
    BKException,
    DataUnknownException,
    DigestMatchException,
    ReadException,
    TimeoutException,
    WriteException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.wire.fast_requests import AddRequestEncoder
from bookgate.ledger.wire.messages import (
    ADD_ENTRY,
    HIGH_PRIORITY,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)
from bookgate.runtime.logs import log_event
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.context import LedgerSecrets, status_error

_log = logging.getLogger(__name__)

_ASKED_AGAIN_AFTER = 3600.0
"""Seconds after which a list is requested again from a bookie without lists: its storage may have changed."""
_INDEX_PAGE_ENTRIES = 1024
"""Entries in an index page of BookKeeper's interleaved storage, of 8 KiB."""
_NOTHING_HELD = (Status.ENOLEDGER, Status.ENOENTRY)
_READS_AT_ONCE = 16
_TASKS_AT_ONCE = 1000
_REFUSALS = (Status.EFENCED, Status.EREADONLY, Status.EUA, Status.EUNKNOWNLEDGERSTATE)
_TAKES_NO_COPY = (
    "it takes no copies of this ledger: it has deleted its own lately, is read-only, or knows another master key"
)


class _Ledger(NamedTuple):
    """The ledger of requests to one bookie."""

    bookie_id: str
    ledger_id: int
    """The number of the ledger."""
    unbounded: bool

    def refused(self, status: int, entry_id: int) -> BKException:
        return status_error(status, self.bookie_id, LedgerId.of_number(self.ledger_id), f"a read of {entry_id}")


class TargetRefusesException(WriteException):
    """The chosen bookie accepts no copies of this ledger; another one may."""


class Bookies:
    """Requests to single bookies of the cluster."""

    def __init__(self, pool: BookiePool, config: ClientConfig) -> None:
        self._pool = pool
        self._config = config
        self._lister_ids: set[str] = set()
        """Bookies that have sent a list."""
        self._silent_until: dict[str, float] = {}
        """For each bookie that does not respond to requests for lists, when to try again."""

    async def copies(self, bookie_id: str, ledger_id: int, due: BitMap64, *, unbounded: bool = False) -> Copies:
        """The entries of a ledger that a bookie says it holds. Never raises: if this can't be determined, it is
        unknown.

        A bookie that can't list a ledger's entries says so, or does not respond, like BookKeeper's RocksDB storage.
        From such a bookie the first and last of the ids that it should hold (`due`) are read, as BookKeeper does, and
        if one of these is missing, all of them. A list may lack an entry that is held; see `left_out_of_lists`. All
        entries in `due` are confirmed, also in an unbounded ledger.
        """
        losses = self._pool.losses(bookie_id)
        state = await self._copies(_Ledger(bookie_id, ledger_id, unbounded), due)
        if not isinstance(state, Holding):
            return state
        if self._pool.losses(bookie_id) != losses:
            return Unknown(f"the connection to bookie {bookie_id} was lost while it said what it holds")
        return replace(state, losses=losses)

    async def _copies(self, ledger: _Ledger, due: BitMap64) -> Copies:
        bookie_id = ledger.bookie_id
        if self._silent_until.get(bookie_id, 0.0) > asyncio.get_running_loop().time():
            return await self._probed(ledger, due)
        try:
            response = await self._list(ledger)
            if response is None and not await self._leaves_lists_unanswered(ledger, due):
                return Unknown(f"bookie {bookie_id} did not answer for its list of entries in time")
        except BKException as error:
            return Unknown(str(error))
        return await self._copies_by(response, ledger, due)

    async def _copies_by(self, response: Response | None, ledger: _Ledger, due: BitMap64) -> Copies:
        if response is None:
            return await self._probed(ledger, due)
        if response.status in _NOTHING_HELD:
            return Holding(BitMap64())
        if response.status == Status.EUNKNOWNLEDGERSTATE:
            return Holding(BitMap64(), limbo=True)
        if response.status == Status.ETOOMANYREQUESTS:
            return Unknown("it is overloaded")
        if response.status != Status.EOK or not isinstance(response, ListEntriesResponse):
            return await self._probed(ledger, due)
        self._lister_ids.add(ledger.bookie_id)
        held = _held(response.availability or b"")
        if isinstance(held, Unknown):
            return held
        try:
            return Holding(held.entries | await self._read(ledger, left_out_of_lists(held.entries, due)))
        except DataUnknownException:
            # It lists its entries and reports that others may be lost: treated like a bookie without lists.
            return Holding(held.entries, limbo=True)
        except BKException as error:
            return Unknown(str(error))

    async def _list(self, ledger: _Ledger) -> Response | None:
        """The response to a request for a list; None if it did not arrive in time."""
        request = ListEntriesRequest(self._pool.next_txn_id(), ledger.ledger_id)
        try:
            return await self._request(ledger.bookie_id, Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, request)
        except TimeoutException:
            return None

    async def _leaves_lists_unanswered(self, ledger: _Ledger, due: BitMap64) -> bool:
        """Whether a bookie without a response to a list has no lists: it responds to a read, but not to a second list.

        A bookie that has ever sent a list is only slow; judged by its first and last entry it might seem complete.
        """
        bookie_id = ledger.bookie_id
        if bookie_id in self._lister_ids:
            return False
        await self._read(ledger, (due.min() if due else 0,))
        if await self._list(ledger) is not None:
            return False
        self._silent_until[bookie_id] = asyncio.get_running_loop().time() + _ASKED_AGAIN_AFTER
        log_event(_log, "bookie_lists_no_entries", bookie=bookie_id)
        return True

    async def _probed(self, ledger: _Ledger, due: BitMap64) -> Copies:
        try:
            held = await self._read(ledger, {due.min(), due.max()} if due else ())
            if len(held) < min(2, len(due)):
                held = await self._read(ledger, due)
                return Holding(held)
        except BKException as error:
            return Unknown(str(error))
        return Holding(due)

    async def _read(self, ledger: _Ledger, ids: Iterable[int]) -> BitMap64:
        """The ids that the bookie holds. Raises BKException unless it says yes or no to each."""
        held, room = BitMap64(), asyncio.Semaphore(_READS_AT_ONCE)

        async def read(entry_id: int) -> None:
            async with room:
                response = await self._ask_for(ledger, entry_id)
            if response.status == Status.EOK:
                held.add(entry_id)
            elif response.status not in _NOTHING_HELD:
                raise ledger.refused(response.status, entry_id)

        rest = iter(ids)
        while some := list(islice(rest, _TASKS_AT_ONCE)):
            await all_of(read(entry_id) for entry_id in some)
        return held

    async def _ask_for(self, ledger: _Ledger, entry_id: int) -> Response:
        """Reads an entry of a complete fragment, telling the bookie of an unbounded ledger that it is confirmed."""
        known_lac = entry_id if ledger.unbounded else None
        request = ReadRequest(self._pool.next_txn_id(), ledger.ledger_id, entry_id, known_lac=known_lac)
        return await self._request(ledger.bookie_id, Operation.READ_ENTRY, request)

    async def entry(self, bookie_id: str, ledger_id: int, entry_id: int, secrets: LedgerSecrets) -> Entry:
        """Reads one bookie's copy of an entry of a complete fragment of an unbounded ledger.

        Raises:
            BKException: The bookie has no good copy, or did not respond.
        """
        ledger = _Ledger(bookie_id, ledger_id, unbounded=True)
        response = await self._ask_for(ledger, entry_id)
        if response.status != Status.EOK or not isinstance(response, ReadResponse):
            raise ledger.refused(response.status, entry_id)
        return decode_entry(secrets.digest, response.body or b"", ledger_id, entry_id)

    async def damaged(
        self, bookie_id: str, ledger_id: int, ids: Iterable[int], secrets: LedgerSecrets, *, unbounded: bool = False
    ) -> BitMap64:
        """The ids whose copy is damaged: the digest is wrong, or the bookie says that it can't read its disk.

        Raises:
            BKException: An id can't be determined; no response, overload and limbo prove nothing.
        """
        found, room = BitMap64(), asyncio.Semaphore(_READS_AT_ONCE)
        ledger = _Ledger(bookie_id, ledger_id, unbounded)

        async def read(entry_id: int) -> None:
            async with room:
                response = await self._ask_for(ledger, entry_id)
            if response.status == Status.EIO:
                found.add(entry_id)
            elif response.status == Status.EOK and isinstance(response, ReadResponse):
                try:
                    decode_entry(secrets.digest, response.body or b"", ledger_id, entry_id)
                except DigestMatchException:
                    found.add(entry_id)
            elif response.status not in _NOTHING_HELD:
                raise ledger.refused(response.status, entry_id)

        rest = iter(ids)
        while some := list(islice(rest, _TASKS_AT_ONCE)):
            await all_of(read(entry_id) for entry_id in some)
        return found

    async def fence(self, bookie_id: str, ledger_id: int, secrets: LedgerSecrets, *, behind: int) -> None:
        """Makes the bookie reject adds of the ledger's writer, even if it does not know the ledger (R9).

        A bookie fences first and then looks for the entry, so one with the right master key has fenced a ledger in
        limbo too. With a wrong key it responds in the same way, and accepts neither copies nor adds of the ledger's
        writer.

        Args:
            bookie_id: The bookie.
            ledger_id: The number of the ledger.
            secrets: The secrets of the ledger.
            behind: Its last entry. The request reads the entry after it, which no bookie should hold: a damaged copy
                would give EIO, which leaves unclear whether the fence holds.

        Raises:
            TargetRefusesException: The bookie does not accept copies of this ledger.
            BKException: It is not certain that the ledger is fenced.
        """
        request = ReadRequest(self._pool.next_txn_id(), ledger_id, behind + 1, True, secrets.master_key)
        response = await self._request(bookie_id, Operation.READ_ENTRY, request)
        status = response.status
        # ENOTCONFIRMED: in an unbounded ledger a bookie does not tell whether an entry after the last one exists.
        if status in (Status.EOK, *_NOTHING_HELD, Status.EUNKNOWNLEDGERSTATE, Status.ENOTCONFIRMED):
            return
        if status in _REFUSALS:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        what = "the fence before a repair"
        raise status_error(status, bookie_id, LedgerId.of_number(ledger_id), what, ReadException)

    async def bring_to_term(self, bookie_id: str, ledger_id: int, term: int, secrets: LedgerSecrets) -> None:
        """Makes the bookie reject requests of earlier terms of an unbounded ledger, including late adds.

        The fence of ordinary ledgers does not stop a client that takes the ledger over, because its adds pass the
        fence; and an entry of an earlier term may have another value.

        Args:
            bookie_id: The bookie.
            ledger_id: The number of the ledger.
            term: The term in its metadata.
            secrets: The secrets of the ledger.

        Raises:
            TargetRefusesException: The bookie does not accept copies of this ledger.
            BKException: Another client has taken the ledger over, or it is not certain that the bookie has the term.
        """
        request = ReadRequest(self._pool.next_txn_id(), ledger_id, 0, False, secrets.master_key, term=term)
        status = (await self._request(bookie_id, Operation.READ_ENTRY, request)).status
        if status in _REFUSALS and status != Status.EUNKNOWNLEDGERSTATE:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        # EIO: the term is recorded first. EBADREQ: the ledger has entries there, or is in limbo, without a term, and
        # the bookie accepts no request with a term.
        if status not in (Status.EOK, *_NOTHING_HELD, Status.EUNKNOWNLEDGERSTATE, Status.EIO, Status.EBADREQ):
            what = f"the read at term {term} before a repair"
            raise status_error(status, bookie_id, LedgerId.of_number(ledger_id), what, ReadException)

    async def add_copies(self, bookie_id: str, ledger_id: int, entries: Sequence[Entry], secrets: LedgerSecrets) -> int:
        """Stores copies of a ledger's entries durably, byte for byte as they were written.

        Args:
            bookie_id: The bookie that stores them.
            ledger_id: The ledger's number, which entries do not contain.
            entries: The entries, at least one.
            secrets: The secrets of the ledger.

        Returns:
            The size of the packets in bytes.

        Raises:
            TargetRefusesException: The bookie does not accept copies of this ledger.
            BKException: It is not certain that all copies are stored.
        """
        size, loop = 0, asyncio.get_running_loop()
        connection = self._pool.connection(bookie_id, ledger_id)
        encoder = AddRequestEncoder(ledger_id, secrets.master_key, recovery=True, priority=HIGH_PRIORITY)
        answers = _Answers(loop.create_future(), len(entries))
        deadline = loop.time() + self._config.add_timeout_seconds
        for entry in entries:
            packet = encode_entry(
                secrets.digest, ledger_id, entry.entry_id, entry.last_add_confirmed, entry.ledger_length, entry.payload
            )
            txn_id = self._pool.next_txn_id()
            frame = encoder.encode(txn_id, entry.entry_id, packet)
            connection.send(ADD_ENTRY, txn_id, frame, deadline, answers.take, entry.entry_id)
            size += len(packet)
        refused = await answers.all_stored
        if refused is None:
            return size
        entry_id, status = refused
        if status in _REFUSALS:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        what = f"a copy of entry {entry_id}"
        raise status_error(status, bookie_id, LedgerId.of_number(ledger_id), what, WriteException)

    async def _request(self, bookie_id: str, operation: Operation, request: Request) -> Response:
        return await self._pool.request(bookie_id, operation, request, self._config.read_timeout_seconds)


class _Answers:
    """The responses to a group of adds, without a task or a future for each."""

    def __init__(self, all_stored: asyncio.Future[tuple[int, int] | None], count: int) -> None:
        self.all_stored = all_stored
        """A future: None once all are stored, or the id and status of the first that is not."""
        self._left = count

    def take(self, entry_id: int, response: Response | None, error: BKException | None) -> None:
        """The sink of each add."""
        if self.all_stored.done():
            return
        self._left -= 1
        if response is None:
            self.all_stored.set_exception(error or BKException(f"there is no answer to a copy of entry {entry_id}"))
        elif response.status != Status.EOK:
            self.all_stored.set_result((entry_id, response.status))
        elif self._left == 0:
            self.all_stored.set_result(None)


async def all_of(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all concurrently; if one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    except (Exception, asyncio.CancelledError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def left_out_of_lists(listed: BitMap64, due: BitMap64) -> Iterator[int]:
    """Ids that a bookie may hold although its list lacks them, so that only a read can tell.

    BookKeeper's interleaved storage leaves out the last entry of a ledger if its id is the first of an index page.
    Source: docs/protocol/auto-recovery.md#worker.
    """
    last = listed.max() if listed else -1
    return _page_starts(due, (last // _INDEX_PAGE_ENTRIES + 1) * _INDEX_PAGE_ENTRIES)


def _page_starts(due: BitMap64, entry_id: int) -> Iterator[int]:
    """The first ids of index pages among `due`, from such an id on.

    Where none is due it goes to the next id that is: any client can create metadata with 2^62 ids between two of them.
    """
    while due and entry_id <= due.max():
        following = next(due.iter_equal_or_larger(entry_id))
        if following == entry_id:
            yield entry_id
            following += 1
        entry_id = -(-following // _INDEX_PAGE_ENTRIES) * _INDEX_PAGE_ENTRIES


def _held(availability: bytes) -> Holding | Unknown:
    held = BitMap64()
    try:
        for first, count in decode_runs(availability):
            held.add_range(first, first + count)
    except (ValueError, OverflowError) as error:
        return Unknown(f"its list of entries can't be read: {error}")
    return Holding(held)
