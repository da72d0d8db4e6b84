"""What a worker asks of single bookies: which entries they hold, which of these are
damaged, to fence a ledger, to take a copy.

A copy is a recovery add of high priority: it passes a fence, and a bookie that has turned read-only takes it while it
has room for that. It is acknowledged when it is durable. Source: docs/protocol/auto-recovery.md#copying,
docs/protocol/wire.md#get_list_of_entries.

Not its job: which entries, and where to (`verdicts`, `repair`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
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
"""Seconds; the bookie may have another storage by then."""
_INDEX_PAGE_ENTRIES = 1024
"""Of BookKeeper's interleaved storage, with pages of 8 KiB."""
_NOTHING_HELD = (Status.ENOLEDGER, Status.ENOENTRY)
_READS_AT_ONCE = 16
_TASKS_AT_ONCE = 1000
_REFUSALS = (Status.EFENCED, Status.EREADONLY, Status.EUA, Status.EUNKNOWNLEDGERSTATE)
_TAKES_NO_COPY = (
    "it takes no copies of this ledger: it has deleted its own lately, is read-only, or knows another master key"
)


class _Ledger(NamedTuple):
    """A ledger as one bookie is asked for it."""

    bookie_id: str
    ledger_id: int
    """Its number."""
    unbounded: bool

    def refused(self, status: int, entry_id: int) -> BKException:
        return status_error(status, self.bookie_id, LedgerId.of_number(self.ledger_id), f"a read of {entry_id}")


class TargetRefusesException(WriteException):
    """A bookie that was chosen takes no copies of this ledger; another one may."""


class Bookies:
    """Requests to single bookies of the cluster."""

    def __init__(self, pool: BookiePool, config: ClientConfig) -> None:
        self._pool = pool
        self._config = config
        self._lister_ids: set[str] = set()
        """Bookies that have sent a list."""
        self._silent_until: dict[str, float] = {}
        """Of each bookie that does not answer for lists: when it is asked for one again."""

    async def copies(self, bookie_id: str, ledger_id: int, due: BitMap64, *, unbounded: bool = False) -> Copies:
        """What a bookie says that it holds of a ledger. Never raises: what can't be said is unknown.

        A bookie that can't list a ledger's entries says so, or leaves the request unanswered, as BookKeeper's RocksDB
        storage does. Of such a one the first and the last of the ids that it is `due` to hold are read, as BookKeeper
        does, and where one of these is missing all of them. A list may lack an entry that is held; see
        `left_out_of_lists`. What is due is confirmed, of an unbounded ledger too.
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
            # It lists what it has and says of the rest that it may have lost it: as where it can't list anything.
            return Holding(held.entries, limbo=True)
        except BKException as error:
            return Unknown(str(error))

    async def _list(self, ledger: _Ledger) -> Response | None:
        """None if there was no answer in time."""
        request = ListEntriesRequest(self._pool.next_txn_id(), ledger.ledger_id)
        try:
            return await self._request(ledger.bookie_id, Operation.GET_LIST_OF_ENTRIES_OF_LEDGER, request)
        except TimeoutException:
            return None

    async def _leaves_lists_unanswered(self, ledger: _Ledger, due: BitMap64) -> bool:
        """Whether a bookie that has not answered for a list never will: it answers a read, and a second list not.

        One that has ever sent a list is slow: by its first and last entry alone it might pass for whole.
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
        """Which of the ids it has. Raises BKException unless it says yes or no to each."""
        held, room = BitMap64(), asyncio.Semaphore(_READS_AT_ONCE)

        async def read(entry_id: int) -> None:
            async with room:
                response = await self._ask_for(ledger, entry_id)
            if response.status == Status.EOK:
                held.add(entry_id)
            elif response.status not in _NOTHING_HELD:
                raise ledger.refused(response.status, entry_id)

        await all_of(read(entry_id) for entry_id in ids)
        return held

    async def _ask_for(self, ledger: _Ledger, entry_id: int) -> Response:
        """An entry of a complete fragment, which is confirmed: the bookie of an unbounded ledger may not know that."""
        known_lac = entry_id if ledger.unbounded else None
        request = ReadRequest(self._pool.next_txn_id(), ledger.ledger_id, entry_id, known_lac=known_lac)
        return await self._request(ledger.bookie_id, Operation.READ_ENTRY, request)

    async def entry(self, bookie_id: str, ledger_id: int, entry_id: int, secrets: LedgerSecrets) -> Entry:
        """An entry of a complete fragment of an unbounded ledger, as one bookie has it.

        Raises:
            BKException: The bookie has no good copy, or did not say.
        """
        ledger = _Ledger(bookie_id, ledger_id, unbounded=True)
        response = await self._ask_for(ledger, entry_id)
        if response.status != Status.EOK or not isinstance(response, ReadResponse):
            raise ledger.refused(response.status, entry_id)
        return decode_entry(secrets.digest, response.body or b"", ledger_id, entry_id)

    async def damaged(
        self, bookie_id: str, ledger_id: int, ids: Iterable[int], secrets: LedgerSecrets, *, unbounded: bool = False
    ) -> BitMap64:
        """Which of the ids it stores damaged: the digest is wrong, or it says that it can't read its disk.

        Raises:
            BKException: Of one it can't be said; no answer, overload and limbo say nothing.
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
        """Makes the bookie take no add of a writer for a ledger, be it one that it has not heard of (R9).

        A bookie fences first and then looks for the entry, so one with the right master key has fenced a ledger in
        limbo too. With a wrong one it says the same, and takes neither copies nor what the ledger's writer adds.

        Args:
            bookie_id: Who is asked.
            ledger_id: The ledger.
            secrets: Of the ledger.
            behind: Its last entry. One behind it is asked for, which nobody has to hold: a damaged copy answers EIO,
                which does not tell whether the fence holds.

        Raises:
            TargetRefusesException: The bookie will not take copies of this ledger.
            BKException: It is not fenced for certain.
        """
        request = ReadRequest(self._pool.next_txn_id(), ledger_id, behind + 1, True, secrets.master_key)
        response = await self._request(bookie_id, Operation.READ_ENTRY, request)
        status = response.status
        # ENOTCONFIRMED: of an unbounded ledger a bookie does not say whether there is an entry behind the last one.
        if status in (Status.EOK, *_NOTHING_HELD, Status.EUNKNOWNLEDGERSTATE, Status.ENOTCONFIRMED):
            return
        if status in _REFUSALS:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        what = "the fence before a repair"
        raise status_error(status, bookie_id, LedgerId.of_number(ledger_id), what, ReadException)

    async def bring_to_term(self, bookie_id: str, ledger_id: int, term: int, secrets: LedgerSecrets) -> None:
        """Makes the bookie take nothing of clients of an unbounded ledger whose terms are over, be it a late add.

        The fence of ordinary ledgers does not keep out a client that takes the ledger over, as its adds pass it; and a
        value of an older term is another one.

        Args:
            bookie_id: Who is asked.
            ledger_id: The ledger.
            term: As its metadata tell.
            secrets: Of the ledger.

        Raises:
            TargetRefusesException: The bookie will not take copies of this ledger.
            BKException: Somebody has taken the ledger over meanwhile, or the bookie is not at the term for certain.
        """
        request = ReadRequest(self._pool.next_txn_id(), ledger_id, 0, False, secrets.master_key, term=term)
        status = (await self._request(bookie_id, Operation.READ_ENTRY, request)).status
        if status in _REFUSALS and status != Status.EUNKNOWNLEDGERSTATE:
            raise TargetRefusesException(f"bookie {bookie_id}: {_TAKES_NO_COPY}")
        # EIO: the term is noted first. EBADREQ: the ledger has entries or is in limbo there, without a term, and the
        # bookie takes nothing that has one.
        if status not in (Status.EOK, *_NOTHING_HELD, Status.EUNKNOWNLEDGERSTATE, Status.EIO, Status.EBADREQ):
            what = f"the read at term {term} before a repair"
            raise status_error(status, bookie_id, LedgerId.of_number(ledger_id), what, ReadException)

    async def add_copies(self, bookie_id: str, ledger_id: int, entries: Sequence[Entry], secrets: LedgerSecrets) -> int:
        """Stores copies of a ledger's entries durably; they are the entries as they were written, byte for byte.

        Args:
            bookie_id: Who stores them.
            ledger_id: The ledger's number, which entries do not tell.
            entries: At least one.
            secrets: Of the ledger.

        Returns:
            The size of the packets in bytes.

        Raises:
            TargetRefusesException: The bookie will not take copies of this ledger.
            BKException: Not all copies are stored for certain.
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
    """Of a group of adds, which has neither a task nor a future for each."""

    def __init__(self, all_stored: asyncio.Future[tuple[int, int] | None], count: int) -> None:
        self.all_stored = all_stored
        """None once all are stored, or the id and the status of the first that is not."""
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
    """Runs all side by side; when one fails the others end, too, and its error is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    except (Exception, asyncio.CancelledError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def left_out_of_lists(listed: BitMap64, due: BitMap64) -> list[int]:
    """Ids that a bookie may hold although its list lacks them, so that only a read can tell.

    BookKeeper's interleaved storage leaves the last entry of a ledger out where its id is the first of an index page.
    Source: docs/protocol/auto-recovery.md#worker.
    """
    last = listed.max() if listed else -1
    return [entry_id for entry_id in due - listed if entry_id > last and entry_id % _INDEX_PAGE_ENTRIES == 0]


def _held(availability: bytes) -> Holding | Unknown:
    held = BitMap64()
    try:
        for first, count in decode_runs(availability):
            held.add_range(first, first + count)
    except (ValueError, OverflowError) as error:
        return Unknown(f"its list of entries can't be read: {error}")
    return Holding(held)
