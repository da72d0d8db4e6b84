"""Registrations, cookies and discovery. A registration counts while its owner lives."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

from bookgate.gateway.stores.bookie_listeners import BookieListeners, select
from bookgate.gateway.stores.claims import Claims, held_by_another, moved_on
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, check_bookie_id, lease_of, same_life
from bookgate.ledger.errors import BookieHandleNotAvailableException, MetadataVersionException
from bookgate.ledger.metadata_store import (
    BookieSet,
    BookiesListener,
    ClusterInfo,
    RegisteredBookie,
    RegistrationManager,
    ServiceDiscovery,
    Versioned,
)

from .state import Owner, State, StateFile

LEDGER_MANAGER_NAME = "tiny_store.TinyLedgerManager"


class TinyRegistrationManager(RegistrationManager):
    """Whom a bookie id belongs to within this process, `Claims` tells; between processes the owner's sign of life."""

    def __init__(self, file: StateFile, owner: Owner) -> None:
        self._file = file
        self._owner = owner
        self._claims = Claims()

    async def cluster_instance_id(self) -> str:
        return str(self._file.read()["instance_id"])

    def reserve(self, bookie_id: str) -> None:
        self._claims.reserve(bookie_id)

    async def register_bookie(self, info: BookieServiceInfo, *, read_only: bool) -> None:
        check_bookie_id(info.bookie_id)
        self._claims.check(info)
        await self.check_membership(info.bookie_id)
        with self._file.change() as state:
            row = state["bookies"].get(info.bookie_id)
            if row and row["owner"] != self._owner.name and row["owner"] in self._file.living(state):
                _refuse_another(info, b64decode(row["content"]))
            state["bookies"][info.bookie_id] = self._row(info, read_only)
        self._claims.held[info.bookie_id] = (info, read_only)

    async def unregister_bookie(self, bookie_id: str, lease: Lease | None = None) -> None:
        if not self._claims.may_change(bookie_id, lease):
            return
        self._claims.held.pop(bookie_id, None)
        with self._file.change() as state:
            row = state["bookies"].get(bookie_id)
            if row and row["owner"] == self._owner.name and same_life(lease_of(b64decode(row["content"])), lease):
                del state["bookies"][bookie_id]

    async def is_registered(self, info: BookieServiceInfo, *, read_only: bool) -> bool:
        return bool(self._file.read()["bookies"].get(info.bookie_id) == self._row(info, read_only))

    async def read_cookie(self, bookie_id: str) -> Versioned[bytes] | None:
        row = self._file.read()["cookies"].get(bookie_id)
        return row and Versioned(b64decode(row["data"]), row["version"])

    async def write_cookie(self, bookie_id: str, cookie: bytes, expected_version: int | None) -> None:
        check_bookie_id(bookie_id)
        with self._file.change() as state:
            _require_cookie(state, bookie_id, expected_version)
            version = 0 if expected_version is None else expected_version + 1
            state["cookies"][bookie_id] = {"version": version, "data": b64encode(cookie).decode()}

    async def remove_cookie(self, bookie_id: str, expected_version: int) -> None:
        with self._file.change() as state:
            _require_cookie(state, bookie_id, expected_version)
            del state["cookies"][bookie_id]

    def give_back(self) -> None:
        """All registrations made here."""
        self._claims.held.clear()
        with self._file.change() as state:
            state["bookies"] = {key: row for key, row in state["bookies"].items() if row["owner"] != self._owner.name}

    def _row(self, info: BookieServiceInfo, read_only: bool) -> dict[str, Any]:
        return {"owner": self._owner.name, "read_only": read_only, "content": b64encode(info.encode()).decode()}


class TinyServiceDiscovery(ServiceDiscovery):
    """The factory feeds `listeners` with changes."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self.listeners = BookieListeners(self._all)

    async def bookies(self, bookie_set: BookieSet) -> Sequence[RegisteredBookie]:
        return select(await self._all(), bookie_set)

    async def bookie_service_info(self, bookie_id: str) -> RegisteredBookie:
        for bookie in await self._all():
            if bookie.bookie_id == bookie_id and (bookie.writable or bookie.read_only):
                return bookie
        raise BookieHandleNotAvailableException(f"bookie {bookie_id} is not registered")

    async def watch_bookies(self, bookie_set: BookieSet, listener: BookiesListener) -> Callable[[], None]:
        return self.listeners.add(bookie_set, listener)

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(self._file.read()["instance_id"], LEDGER_MANAGER_NAME)

    async def _all(self) -> Sequence[RegisteredBookie]:
        return bookies_of(self._file)


def bookies_of(file: StateFile) -> list[RegisteredBookie]:
    """Those whose owners live, and those that are known by their cookie."""
    state = file.read()
    living = file.living(state)
    found = {key: RegisteredBookie(BookieServiceInfo.legacy(key), False, False) for key in state["cookies"]}
    for key, row in state["bookies"].items():
        if row["owner"] in living:
            info = BookieServiceInfo.announced(key, b64decode(row["content"]))
            found[key] = RegisteredBookie(info, not row["read_only"], row["read_only"])
    return list(found.values())


def _refuse_another(info: BookieServiceInfo, stored: bytes) -> None:
    """A bookie that registers through gateways may move from one to the next, and not back."""
    if info.superseded_by(stored):
        raise moved_on(info.bookie_id)
    if not info.may_replace(stored):
        raise held_by_another(info.bookie_id)


def _require_cookie(state: State, bookie_id: str, expected_version: int | None) -> None:
    row = state["cookies"].get(bookie_id)
    version = row and row["version"]
    if version != expected_version:
        raise MetadataVersionException(f"cookie of bookie {bookie_id}: version {version}, not {expected_version}")
