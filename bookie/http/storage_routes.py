"""The bookie's files over HTTP: journal marks, names of files, new directories, compaction of the RocksDB index."""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from bookgate.bookie.disks import directories
from bookgate.bookie.journal.last_mark import mark_file_name, read_mark
from bookgate.bookie.membership.cookie import InvalidCookieException
from bookgate.bookie.storage.storage import LedgerStorage
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.gateway.http.api import WHOLE, Body, Call, LedgerHalf, NoBody, NoQuery, Query, Route, change, get
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import STORE_AWAY
from bookgate.ledger.ledger_id import halves_of, number_of
from bookgate.runtime.logs import log_event

if TYPE_CHECKING:
    from bookgate.bookie.index.rocksdb_index import RocksDbIndex

_log = logging.getLogger(__name__)

_MAX_NAMES = 10_000
_MAX_LEDGERS = 100_000

_SUFFIXES = {"journal": ".txn", "entrylog": ".log", "index": ".idx"}


class FilesQuery(Query):
    file_type: Literal["journal", "entrylog", "index"] | None = Field(None, description="absent: all three")


class HeldQuery(Query):
    start_after: LedgerHalf | None = Field(None, description="ids above it; the answer's `next` goes on")
    limit: Annotated[int, Field(ge=1, le=_MAX_LEDGERS), WHOLE] = 10_000
    ledger_scope_id: LedgerHalf = Field(0, description="the scope; 0 for BookKeeper's own ids")


class CompactBody(Body):
    compact: Literal[True] = Field(alias="entryLocationRocksDBCompact")
    locations: str = Field("", alias="entryLocations", description="paths separated by commas; default: all")


def storage_routes(
    storage: LedgerStorage, check_cookie: Callable[[], Awaitable[object]], *, may_expand: bool
) -> list[Route]:
    """`check_cookie` compares the cookies as a start does, and stamps directories that have joined."""
    config = storage.config
    compacting: set[Path] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def last_log_mark(_call: Call[NoQuery, NoBody]) -> Any:
        return await asyncio.to_thread(_marks, storage)

    async def files(call: Call[FilesQuery, NoBody]) -> Any:
        kinds = [call.query.file_type] if call.query.file_type else list(_SUFFIXES)
        roots = {
            "journal": config.journal_directories,
            "entrylog": config.ledger_directories,
            "index": config.index_directories or config.ledger_directories,
        }
        names = await asyncio.to_thread(lambda: {kind: _names(roots[kind], _SUFFIXES[kind]) for kind in kinds})
        return {f"{kind} files": "".join(f"{name}\t" for name in found) for kind, found in names.items()}

    async def held(call: Call[HeldQuery, NoBody]) -> Any:
        call.caller.take("listed_ids_per_second", 0)
        page = await asyncio.to_thread(_held, storage, call.query)
        call.caller.owe("listed_ids_per_second", len(page["ledgers"]))
        return page

    async def expand(_call: Call[NoQuery, NoBody]) -> str:
        if not may_expand:
            raise HttpError(
                409,
                "storage can't be expanded: set allow_storage_expansion, add directories, restart the bookie",
            )
        try:
            await check_cookie()
        except InvalidCookieException as error:
            raise HttpError(409, str(error)) from None
        return "Success expand storage"

    async def compactions(_call: Call[NoQuery, NoBody]) -> Any:
        return {str(path): path in compacting for path in _databases(storage)}

    async def compact(call: Call[NoQuery, CompactBody]) -> Any:
        known = _databases(storage)
        if not known:
            raise HttpError(409, "this bookie's index is not RocksDB (storage_type db): nothing to compact")
        named = [Path(name.strip()) for name in call.body.locations.split(",") if name.strip()] or list(known)
        unknown = [str(path) for path in named if path not in known]
        if unknown:
            raise HttpError(400, f"no entry locations at {', '.join(unknown)}; there are {', '.join(map(str, known))}")
        for path in dict.fromkeys(named):
            if path not in compacting:
                compacting.add(path)
                task = asyncio.get_running_loop().create_task(run(path, known[path]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        return f"Triggered entry Location RocksDB: {[str(path) for path in named]} compact on this bookie."

    async def run(path: Path, index: RocksDbIndex) -> None:
        try:
            await asyncio.to_thread(index.compact)
        except OSError as error:
            log_event(_log, "index_compaction_ended", logging.WARNING, path=path, error=error)
        finally:
            compacting.discard(path)

    said = {"type": "string"}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    held_page = {
        "type": "object",
        "required": ["ledgers", "next"],
        "properties": {
            "ledgers": {"type": "array", "items": {"type": "integer"}},
            "next": {"type": ["integer", "null"]},
        },
    }
    compact_path = "/api/v1/bookie/entry_location_compact"
    return [
        get("/api/v1/bookie/last_log_mark", "Where replay of each journal would begin", last_log_mark, answer=texts),
        get("/api/v1/bookie/list_disk_file", "Names of its files", files, query=FilesQuery, answer=texts),
        get("/api/v1/bookie/ledgers", "Ids of the ledgers that it holds", held, query=HeldQuery, answer=held_page),
        change(
            "PUT",
            "/api/v1/bookie/expand_storage",
            "Check the cookies again and stamp directories that have joined",
            expand,
            answer=None,
            media_type="text/plain",
            failures={409: "the settings do not allow it, or the cookies do not match", **STORE_AWAY},
        ),
        get(compact_path, "Which RocksDB indexes are being compacted", compactions),
        change(
            "PUT",
            compact_path,
            "Compact RocksDB indexes",
            compact,
            body=CompactBody,
            answer=said,
            failures={409: "the index is not RocksDB"},
        ),
    ]


def _held(storage: LedgerStorage, query: HeldQuery) -> dict[str, Any]:
    if query.ledger_scope_id:
        return _held_in_scope(storage.scoped_ledgers(), query)
    ids = storage.ledger_ids()
    start = 0 if query.start_after is None else bisect_right(ids, query.start_after)
    page = ids[start : start + query.limit].tolist()
    return {"ledgers": page, "next": page[-1] if start + len(page) < len(ids) else None}


def _held_in_scope(numbers: Sequence[int], query: HeldQuery) -> dict[str, Any]:
    """In the order of the ids' bits, as all listings of a scope: those that are negative come last."""
    scope_id, start_after = query.ledger_scope_id, query.start_after
    lowest, highest = number_of(scope_id, 0), number_of(scope_id, -1)
    begin = (
        bisect_left(numbers, lowest) if start_after is None else bisect_right(numbers, number_of(scope_id, start_after))
    )
    end = bisect_right(numbers, highest)
    page = [halves_of(number)[1] for number in numbers[begin : min(end, begin + query.limit)]]
    return {"ledgers": page, "next": page[-1] if begin + len(page) < end else None}


def _marks(storage: LedgerStorage) -> dict[str, str]:
    config = storage.config
    count = len(config.journal_directories)
    names = [mark_file_name(number, count) for number in range(count)]
    marks = [read_mark(REAL_FILE_SYSTEM, config.ledger_directories, name) for name in names]
    return {f"LastLogMark: Journal Id - {mark[0]}({mark[0]:x}.txn)": f"Pos - {mark[1]}" for mark in marks}


def _databases(storage: LedgerStorage) -> dict[Path, RocksDbIndex]:
    if storage.config.storage != "db":
        return {}
    # Here, since its library is not needed otherwise.
    from bookgate.bookie.index.rocksdb_index import RocksDbIndex

    indexes = [store.index for store in storage.stores]
    return {index.locations_path: index for index in indexes if isinstance(index, RocksDbIndex)}


def _names(roots: Sequence[Path], suffix: str) -> list[str]:
    """Names in order, and where there are too many to tell, how many are left out."""
    kept: list[str] = []
    left_out = 0
    for name in _found(roots, suffix):
        kept.append(name)
        if len(kept) >= 2 * _MAX_NAMES:
            left_out += len(kept) - _MAX_NAMES
            kept = heapq.nsmallest(_MAX_NAMES, kept)
    left_out += max(0, len(kept) - _MAX_NAMES)
    kept = sorted(kept)[:_MAX_NAMES]
    return [*kept, f"({left_out} more)"] if left_out else kept


def _found(roots: Sequence[Path], suffix: str) -> Iterator[str]:
    for root in roots:
        for path in directories.current(root).rglob(f"*{suffix}"):
            yield path.name
