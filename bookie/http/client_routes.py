"""Routes for which the bookie is a client of its own cluster: entries of a ledger, the space of every bookie, its own
sanity test.

The client is created on first use. Its settings are the thin client's (TLS to bookies, authentication), from the
environment (`BOOKGATE_…`); its metadata is the bookie's own.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlencode

from pydantic import Field
from starlette.responses import JSONResponse, Response

from bookgate.bookie.http.callers_ledgers import CallersLedgers
from bookgate.gateway.http.access import Need, path_of
from bookgate.gateway.http.api import MAX_INT64, WHOLE, Call, NoBody, NoQuery, Route, get
from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import NO_ENTRIES, STORE_AWAY, LedgerQuery
from bookgate.ledger.entry import Entry
from bookgate.ledger.errors import BKException, IncorrectParameterException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import BookieSet, LedgerManager, LedgerManagerFactory, LedgerRecord
from bookgate.ledger.wire.messages import (
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    Operation,
    ReadRequest,
    Status,
)
from bookgate.ledger.wire.messages import Response as BookieResponse
from bookgate.runtime.security.actions import Action
from bookgate.thinclient.bookies.connection import tcp_connector
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.tools.sanity import is_sane

PAGE = 1000
"""Entries of an answer, as in BookKeeper."""

_MAX_BYTES = 1024 * 1024
"""Payload of an answer; a single entry may be larger. Showing it holds up the event loop, so it is little."""

_READS = 4
"""Answers in the making at once."""

_BATCH = 100

_FORMATS: Mapping[str, Callable[[bytes], str]] = {
    "text": lambda payload: payload.decode("ascii", "replace"),
    "hex": bytes.hex,
    "base64": lambda payload: base64.b64encode(payload).decode(),
}


EntryNumber = Annotated[int, Field(ge=0, le=MAX_INT64), WHOLE]
LastEntryNumber = Annotated[int, Field(ge=-1, le=MAX_INT64), WHOLE]
PageNumber = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]


class ReadQuery(LedgerQuery):
    start_entry_id: EntryNumber = Field(0, description="first entry")
    end_entry_id: LastEntryNumber = Field(-1, description="last entry; -1 for the last confirmed one")
    page: PageNumber | None = Field(None, description=f"from 1, of {PAGE} entries each")
    format: Literal["text", "hex", "base64"] = Field("text", description="text shows what is not ASCII as \ufffd")

    def bounds(self, last_confirmed: int) -> tuple[int, int]:
        """First and last entry that are meant; the last is below the first where there are none."""
        first, last = self.start_entry_id, last_confirmed
        if self.end_entry_id >= 0:
            last = min(last, self.end_entry_id)
        if self.page is not None:
            begin = (self.page - 1) * PAGE
            first, last = max(first, begin), min(last, begin + PAGE - 1)
        return first, last


class OwnClient:
    """See the module. `close` it before the metadata."""

    def __init__(self, factory: LedgerManagerFactory, bookie_id: str, config: Callable[[], ClientConfig]) -> None:
        self._factory = factory
        self._config = config
        self._bookie_id = bookie_id
        self._client: BookKeeper | None = None
        self._pool: BookiePool | None = None
        self._testing = asyncio.Lock()

    def config(self) -> ClientConfig:
        """The client's settings. Raises HttpError if they are not valid."""
        try:
            return self._config()
        except IncorrectParameterException as error:
            raise HttpError(503, f"the bookie's own client can't be set up: {error}") from None

    def _bookkeeper(self) -> BookKeeper:
        if self._client is None:
            factory = self._factory
            catch_up = partial(factory.catch_up, None)
            self._client = BookKeeper(
                factory.ledger_manager, factory.service_discovery, self.config(), catch_up=catch_up
            )
        return self._client

    def _bookies(self) -> BookiePool:
        if self._pool is None:
            discovery = self._factory.service_discovery
            self._pool = BookiePool.of(self.config(), discovery, tcp_connector, random.SystemRandom())
        return self._pool

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._pool is not None:
            await self._pool.close_and_wait()

    async def open(self, query: LedgerQuery, caller: Caller) -> ReadHandle:
        """The ledger, without recovery, for somebody who may read its entries; they need not know its password.

        Raises BKException, HttpError.
        """
        client = self._bookkeeper()
        record = await client.read_record(query.name())
        caller.check_ledger(Action.ENTRY_READ, record)
        return client.open_record(record, password_of(record))

    async def recover(self, query: LedgerQuery, caller: Caller) -> LedgerRecord:
        """Takes the ledger from its writer, if it is not closed, and closes it, for somebody who may.

        Raises BKException, HttpError.
        """
        caller.take("changes_per_second")
        ledgers = _CheckedReads(self._factory.ledger_manager, partial(caller.check_ledger, Action.LEDGER_RECOVER))
        async with BookKeeper(cast(LedgerManager, ledgers), self._factory.service_discovery, self.config()) as client:
            record = await client.read_record(query.name())
            async with await client.open_ledger(record.ledger_id, password_of(record), recovery=True) as handle:
                return handle.record

    @asynccontextmanager
    async def acting_for(self, caller: Caller) -> AsyncIterator[BookKeeper]:
        """A client that does with ledgers what the caller may do. Raises HttpError."""
        ledgers = cast(LedgerManager, CallersLedgers(self._factory, caller))
        discovery, catch_up = self._factory.service_discovery, partial(self._factory.catch_up, None)
        async with BookKeeper(ledgers, discovery, self.config(), catch_up=catch_up) as client:
            yield client

    async def record_of(self, ledger_id: LedgerId) -> LedgerRecord:
        """The ledger, whoever asks, with its password as far as this bookie knows it. Raises BKException."""
        return await self._factory.ledger_manager.read(ledger_id)

    async def spaces(self) -> dict[str, tuple[int, int] | None]:
        """Free and total bytes of every registered bookie, None for one that does not answer. Raises BKException."""
        discovery = self._factory.service_discovery
        found = [*await discovery.bookies(BookieSet.WRITABLE), *await discovery.bookies(BookieSet.READ_ONLY)]
        ids = list(dict.fromkeys(bookie.bookie_id for bookie in found))
        return dict(zip(ids, await asyncio.gather(*map(self._space, ids)), strict=True))

    async def _space(self, bookie_id: str) -> tuple[int, int] | None:
        pool = self._bookies()
        request = GetBookieInfoRequest(pool.next_txn_id(), FREE_DISK_SPACE | TOTAL_DISK_CAPACITY)
        try:
            response = await pool.request(bookie_id, Operation.GET_BOOKIE_INFO, request, 5.0)
        except BKException:
            return None
        if not isinstance(response, GetBookieInfoResponse) or response.status != Status.EOK:
            return None
        return response.free_disk_space or 0, response.total_disk_capacity or 0

    async def read_copy(self, bookie_id: str, number: int, entry_id: int, timeout: float) -> BookieResponse:
        """What this very bookie answers to a read of an entry of the ledger with this number. Raises BKException."""
        pool = self._bookies()
        request = ReadRequest(pool.next_txn_id(), number, entry_id)
        return await pool.request(bookie_id, Operation.READ_ENTRY, request, timeout)

    async def is_sane(self) -> bool:
        """Writes a ledger of some entries to this bookie, reads it back and deletes it; one test at a time."""
        async with self._testing:
            return await is_sane(self._bookkeeper(), self._bookie_id)


class _CheckedReads:
    """Ledgers that are looked at, whenever they are read, before anything is done with them. A recovery writes what it
    has read and in no other version, so that each version that it replaces was looked at.
    """

    def __init__(self, ledgers: LedgerManager, check: Callable[[LedgerRecord], None]) -> None:
        self._ledgers = ledgers
        self._check = check

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        record = await self._ledgers.read(ledger_id)
        self._check(record)
        return record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledgers, name)


def password_of(record: LedgerRecord) -> bytes:
    """The ledger's password. Raises HttpError where this bookie's own gateway withholds it."""
    try:
        return record.metadata.known_password() or b""
    except UnauthorizedAccessException:
        raise HttpError(
            503,
            f"the gateway that this bookie uses withholds the password of ledger {record.ledger_id}: give the bookie's "
            "principal the action ledger.secret, as the role bookie has it",
        ) from None


def client_routes(own: OwnClient, is_read_only: Callable[[], bool]) -> list[Route]:
    reading = asyncio.Semaphore(_READS)

    async def read(call: Call[ReadQuery, NoBody]) -> Response:
        async with reading, await own.open(call.query, call.caller) as handle:
            first, last = call.query.bounds(await handle.read_last_confirmed())
            entries, following = await _entries(handle, first, last)
        show = _FORMATS[call.query.format]
        found = {str(entry.entry_id): show(bytes(entry.payload)) for entry in entries}
        if call.query.page is not None:
            found["Entries for page: "] = str(call.query.page)
        headers = {}
        if following is not None:
            query = {**dict(call.request.query_params), "start_entry_id": following}
            if call.query.page is not None:
                query["end_entry_id"] = last
                del query["page"]
            headers["Link"] = f'<{path_of(call.request)}?{urlencode(query)}>; rel="next"'
        return JSONResponse(found, headers=headers)

    async def bookie_info(_call: Call[NoQuery, NoBody]) -> Any:
        known = {name: space for name, space in (await own.spaces()).items() if space is not None}
        if not known:
            raise HttpError(404, "no bookie tells its space: none is registered, or none answers")
        found = {name: f": {_space_text(*space)}," for name, space in known.items()}
        free, total = (sum(values) for values in zip(*known.values(), strict=True))
        return {**found, "ClusterInfo: ": _space_text(free, total)}

    async def sanity(_call: Call[NoQuery, NoBody]) -> Any:
        if is_read_only():
            return {"passed": False, "readOnly": True}
        try:
            async with asyncio.timeout(30):
                passed = await own.is_sane()
        except TimeoutError:
            passed = False
        except BKException as error:
            raise HttpError(503, f"the bookie did not store a ledger: {error}") from None
        return {"passed": passed, "readOnly": False}

    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    return [
        get(
            "/api/v1/ledger/read",
            "Entries of a ledger",
            read,
            query=ReadQuery,
            answer=texts,
            need=Need.CONTENT,
            failures=NO_ENTRIES,
        ),
        get(
            "/api/v1/bookie/list_bookie_info",
            "Room at every bookie",
            bookie_info,
            answer=texts,
            failures={404: "no bookie answers", **STORE_AWAY},
        ),
        get(
            "/api/v1/bookie/sanity",
            "Writes, reads and deletes a ledger on this bookie",
            sanity,
            need=Need.CONTENT,
            failures={503: "the bookie did not store it"},
        ),
    ]


async def _entries(handle: ReadHandle, first: int, last: int) -> tuple[list[Entry], int | None]:
    """From the first on, as many as an answer takes, and where the others begin. A truncate entry is none of them, so
    there may be others behind an answer without any.
    """
    if first > last:
        return [], None
    found: list[Entry] = []
    size, end = 0, min(last, first + PAGE - 1)
    async with aclosing(handle.read_batches(first, end, _BATCH)) as batches:
        async for batch in batches:
            for entry in batch:
                size += len(entry.payload)
                if found and size > _MAX_BYTES:
                    return found, entry.entry_id
                found.append(entry)
    return found, end + 1 if end < last else None


def _space_text(free: int, total: int) -> str:
    return f"{{Free: {free}{_readable(free)}, Total: {total}{_readable(total)}}}"


def _readable(size: int) -> str:
    """In powers of 1000, cut to three digits behind the point; nothing below 1000."""
    if size < 1000:
        return ""
    unit = min((len(str(size)) - 1) // 3, 4)
    thousandths = size * 1000 // 1000**unit
    digits = f"{thousandths // 1000}.{thousandths % 1000:03}".rstrip("0").rstrip(".")
    return f"({digits}{('', 'KB', 'MB', 'GB', 'TB')[unit]})"
