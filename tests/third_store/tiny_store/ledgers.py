"""Ledger metadata: what a store must do itself. Many at once, and records of listings, are `LedgerManager`'s loops."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.ledger.errors import (
    LedgerExistException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerManager, LedgerMetadataListener, LedgerRecord, RawLedgerRecord

from .state import State, StateFile

_RUN = 1000


class TinyLedgerManager(LedgerManager):
    """Listeners run over `LedgerListeners`; the factory feeds it with changes."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self.listeners = LedgerListeners(self._read_stored)

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        with self._file.change() as state:
            chosen = _next_id(state) if ledger_id is None else ledger_id
            row = state["ledgers"].get(_key(chosen))
            if row is None:
                row = {"version": 0, "incarnation": state["revision"], "data": _text(metadata)}
                state["ledgers"][_key(chosen)] = row
            elif not metadata.creator_token or _stored(chosen, row).metadata.creator_token != metadata.creator_token:
                raise LedgerExistException(f"ledger {chosen} exists already")
        return LedgerRecord(chosen, metadata, 0, incarnation=row["incarnation"])

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        row = _found(self._file.read(), ledger_id)
        return IncarnatedRecord(_stored(ledger_id, row), row["incarnation"]).marked()

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        with self._file.change() as state:
            row = _found(state, ledger_id, expected_version)
            row |= {"version": expected_version + 1, "data": _text(metadata)}
        return LedgerRecord(ledger_id, metadata, expected_version + 1, incarnation=row["incarnation"])

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        with self._file.change() as state:
            _found(state, ledger_id, expected_version)
            del state["ledgers"][_key(ledger_id)]

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        scopes = (key.split("/") for key in self._file.read()["ledgers"])
        ids = sorted(int(number) for scope, number in scopes if int(scope) == scope_id)
        wanted = [
            number
            for number in ids
            if (start_after is None or number > start_after) and (end_before is None or number < end_before)
        ]
        for start in range(0, len(wanted), _RUN):
            yield wanted[start : start + _RUN]

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.remove(ledger_id, listener)

    async def _read_stored(self, ledger_id: LedgerId) -> IncarnatedRecord | None:
        row = self._file.read()["ledgers"].get(_key(ledger_id))
        return None if row is None else IncarnatedRecord(_stored(ledger_id, row), row["incarnation"])


def _key(ledger_id: LedgerId) -> str:
    return f"{ledger_id.scope_id}/{ledger_id.low}"


def _text(metadata: LedgerMetadata) -> str:
    return b64encode(encode(metadata)).decode()


def _stored(ledger_id: LedgerId, row: dict[str, Any]) -> LedgerRecord:
    return RawLedgerRecord(ledger_id, b64decode(row["data"]), row["version"]).record()


def _found(state: State, ledger_id: LedgerId, expected_version: int | None = None) -> dict[str, Any]:
    row: dict[str, Any] | None = state["ledgers"].get(_key(ledger_id))
    if row is None:
        raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")
    if expected_version not in (None, row["version"]):
        raise MetadataVersionException(f"ledger {ledger_id} is at version {row['version']}, not {expected_version}")
    return row


def _next_id(state: State) -> LedgerId:
    while True:
        ledger_id = LedgerId.unscoped(state["next_id"])
        state["next_id"] += 1
        if _key(ledger_id) not in state["ledgers"]:
            return ledger_id
