"""Entries for the console: a page of them as a client reads them, and one entry with each of its copies.

A client uses the first good copy and says nothing about the others. A page therefore shows whether an entry can be
read, and a single entry shows the response of every bookie of its write set: whether the copy exists, whether its
digest is right, and whether it equals the others.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

from pydantic import Field

from bookgate.bookie.http.client_routes import EntryNumber, OwnClient, password_of
from bookgate.gateway.console.paths import CONSOLE
from bookgate.gateway.http.access import Need
from bookgate.gateway.http.api import WHOLE, Call, NoBody, Route, get
from bookgate.gateway.http.routes.ledgers import NO_ENTRIES, LedgerQuery
from bookgate.ledger.digest import Digest
from bookgate.ledger.entry import Entry, decode_entry
from bookgate.ledger.errors import BKException, DigestMatchException, NoSuchEntryException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.quorum import write_set
from bookgate.ledger.unbounded import deleted_before
from bookgate.ledger.wire.messages import ReadResponse, Status
from bookgate.thinclient.handles.context import LedgerSecrets
from bookgate.thinclient.handles.read_handle import ReadHandle

_MAX_PAGE = 100
_READS = 4
"""Answers in the making at once."""
_IN_PAGE = 4 * 1024
"""Bytes of a payload that a page shows."""
_IN_ENTRY = 256 * 1024
_PAGE_BYTES = 8 * 1024 * 1024
"""A page ends behind the entry with which so many bytes were read."""
_COPY_SECONDS = 5.0


class EntriesQuery(LedgerQuery):
    start_entry_id: EntryNumber = Field(0, description="first entry")
    limit: Annotated[int, Field(ge=1, le=_MAX_PAGE), WHOLE] = Field(50, description="of a page")


class EntryQuery(LedgerQuery):
    entry_id: EntryNumber = Field(description="the entry")


def console_entry_routes(own: OwnClient) -> list[Route]:
    reading = asyncio.Semaphore(_READS)

    async def entries(call: Call[EntriesQuery, NoBody]) -> Any:
        query = call.query
        async with reading, await own.open(query, call.caller) as handle:
            confirmed = await handle.read_last_confirmed()
            first = max(query.start_entry_id, handle.first_entry_id)
            end = min(confirmed, first + query.limit - 1)
            found: list[dict[str, Any]] = []
            size = 0
            for entry_id in range(first, end + 1):
                shown = await _read(handle, entry_id)
                found.append(shown)
                size += shown.get("size", 0)
                if size > _PAGE_BYTES:
                    end = entry_id
                    break
        return {
            "lastConfirmed": str(confirmed),
            "entries": found,
            "next": str(end + 1) if end < confirmed else None,
        }

    async def entry(call: Call[EntryQuery, NoBody]) -> Any:
        query = call.query
        async with reading, await own.open(query, call.caller) as handle:
            metadata, entry_id = handle.metadata, query.entry_id
            if entry_id < (first := deleted_before(metadata)):
                raise NoSuchEntryException(
                    f"entry {entry_id} of ledger {query.ledger_id} was deleted by a trim; the first one left is {first}"
                )
            bookies = _bookies_of(metadata, entry_id)
            digest = LedgerSecrets.of(metadata, password_of(handle.record), own.config()).digest
            answers = await asyncio.gather(*(_copy(own, name, query, digest) for name in bookies))
        good = next((answer for answer in answers if isinstance(answer, Entry)), None)
        copies = [_copy_shown(name, answer, good) for name, answer in zip(bookies, answers, strict=True)]
        shown = _shown(good, bookies, _IN_ENTRY) if good is not None else {"id": str(entry_id), "digest": "none"}
        return {**shown, "copies": copies}

    return [
        get(
            f"{CONSOLE}/entries",
            "A page of a ledger's entries",
            entries,
            query=EntriesQuery,
            answer={"type": "object", "required": ["entries", "lastConfirmed", "next"]},
            need=Need.CONTENT,
            failures=NO_ENTRIES,
        ),
        get(
            f"{CONSOLE}/entry",
            "One entry, and what every bookie of its write set holds of it",
            entry,
            query=EntryQuery,
            answer={"type": "object", "required": ["id", "copies"]},
            need=Need.CONTENT,
            failures=NO_ENTRIES,
        ),
    ]


async def _read(handle: ReadHandle, entry_id: int) -> dict[str, Any]:
    """One entry as a client gets it; one that can't be read does not keep the others from being shown."""
    bookies = _bookies_of(handle.metadata, entry_id)
    try:
        found = [entry async for entry in handle.read(entry_id, entry_id)]
    except BKException as error:
        digest = "bad" if isinstance(error, DigestMatchException) else "none"
        return {"id": str(entry_id), "digest": digest, "problem": str(error), "bookies": bookies}
    if not found:
        # Readers skip it; here a gap would look like a loss.
        return {"id": str(entry_id), "digest": "ok", "size": 0, "truncates": True, "payload": "", "bookies": bookies}
    return _shown(found[0], bookies, _IN_PAGE)


def shown_in_page(handle: ReadHandle, entry: Entry) -> dict[str, Any]:
    """An entry that was read, as a page of entries shows it."""
    return _shown(entry, _bookies_of(handle.metadata, entry.entry_id), _IN_PAGE)


def _bookies_of(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    if entry_id < deleted_before(metadata):
        # By a trim since the page began.
        return []
    ensemble = metadata.fragment_at(entry_id).ensemble
    return [ensemble[index] for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]


def _shown(entry: Entry, bookies: list[str], most: int) -> dict[str, Any]:
    payload = bytes(entry.payload)
    return {
        "id": str(entry.entry_id),
        "digest": "ok",
        "size": len(payload),
        "ledgerLength": str(entry.ledger_length),
        "lastAddConfirmed": str(entry.last_add_confirmed),
        "payload": base64.b64encode(payload[:most]).decode(),
        "bookies": bookies,
    }


async def _copy(own: OwnClient, bookie_id: str, query: EntryQuery, digest: Digest) -> Entry | BKException | str:
    """The copy, or what is wrong with it: the digest, or in a word what the bookie answers."""
    try:
        number = query.name().number
        answer = await own.read_copy(bookie_id, number, query.entry_id, _COPY_SECONDS)
        if not isinstance(answer, ReadResponse) or answer.status != Status.EOK or answer.body is None:
            return _status_name(answer.status)
        return decode_entry(digest, bytes(answer.body), number, query.entry_id)
    except BKException as error:
        return error


def _status_name(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return f"status {status}"


_MISSING = {Status.ENOENTRY.name, Status.ENOLEDGER.name}


def _copy_shown(bookie_id: str, answer: Entry | BKException | str, good: Entry | None) -> dict[str, str]:
    if isinstance(answer, Entry):
        same = good is None or (answer.payload, answer.ledger_length) == (good.payload, good.ledger_length)
        return {"bookie": bookie_id, "state": "ok" if same else "differs"}
    if isinstance(answer, DigestMatchException):
        return {"bookie": bookie_id, "state": "bad digest", "problem": str(answer)}
    if isinstance(answer, str):
        return {"bookie": bookie_id, "state": "missing" if answer in _MISSING else "refused", "problem": answer}
    return {"bookie": bookie_id, "state": "no answer", "problem": str(answer)}
