"""The entry points of the driver: `create_factory`, and `create_admin` for `bookgate cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from bookgate.gateway.stores.cluster_admin import NO_SETTINGS, ClusterAdmin, ClusterSummary
from bookgate.gateway.stores.settings import DEFAULTS, StoreSettings
from bookgate.ledger.errors import BKException, IncorrectParameterException, LedgerExistException, MetaStoreException
from bookgate.ledger.metadata_store import LedgerManager, LedgerManagerFactory, RegistrationManager, ServiceDiscovery
from bookgate.runtime.background import keep_running

from .bookies import LEDGER_MANAGER_NAME, TinyRegistrationManager, TinyServiceDiscovery, bookies_of
from .ledgers import TinyLedgerManager
from .settings import TinySettings
from .state import Owner, State, StateFile


class TinyFactory(LedgerManagerFactory):
    """One directory and what is made from it."""

    def __init__(self, directory: Path, settings: TinySettings) -> None:
        self._settings = settings
        self._file = StateFile(directory)
        self._owner = Owner(directory)
        self._manager = TinyLedgerManager(self._file)
        self._discovery = TinyServiceDiscovery(self._file)
        self._registration = TinyRegistrationManager(self._file, self._owner)
        self._looking: asyncio.Task[None] | None = None
        self._seen: object = None

    async def initialize(self) -> None:
        if self._file.read()["password"] != _digest(self._settings):
            raise MetaStoreException(f"tiny_password is not that of the cluster in {self._file.directory}")
        self._owner.begin()
        self._looking = keep_running("looks at the file", self._look_for_changes)

    @property
    def ledger_manager(self) -> LedgerManager:
        return self._manager

    @property
    def service_discovery(self) -> ServiceDiscovery:
        return self._discovery

    @property
    def registration_manager(self) -> RegistrationManager:
        return self._registration

    @property
    def connected(self) -> bool:
        return self._file.path.exists()

    async def revision(self) -> int:
        return int(self._file.read()["revision"])

    async def catch_up(self, revision: int | None) -> None:
        self._look()
        await self._manager.listeners.settled()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._manager.listeners.close()
        await self._discovery.listeners.close()
        with contextlib.suppress(BKException):
            self._registration.give_back()
        self._owner.end()

    async def _look_for_changes(self) -> None:
        while True:
            with contextlib.suppress(BKException):
                self._look()
            await asyncio.sleep(self._settings.tiny_look_seconds)

    def _look(self) -> None:
        seen = self._file.mark(), self._file.living(self._file.read())
        if seen != self._seen:
            self._seen = seen
            self._manager.listeners.all_changed()
            self._discovery.listeners.changed()


class TinyAdmin(ClusterAdmin):
    """Makes and removes what `TinyFactory` uses."""

    def __init__(self, directory: Path, settings: TinySettings) -> None:
        self._settings = settings
        self._file = StateFile(directory)

    async def connect(self) -> None:
        """There may be no file."""

    async def close(self) -> None:
        """Nothing is held open."""

    async def initialize(self, settings: Mapping[str, bytes] = NO_SETTINGS) -> None:
        """Without the settings: it has no auto-recovery."""
        if not self._file.make({**_empty(), "revision": 0, "password": _digest(self._settings)}):
            raise LedgerExistException(f"there is a cluster in {self._file.directory} already")

    async def require_cluster(self) -> None:
        self._file.read()

    async def summary(self) -> ClusterSummary:
        state, bookies = self._file.read(), bookies_of(self._file)
        return ClusterSummary(
            state["instance_id"],
            LEDGER_MANAGER_NAME,
            len(state["ledgers"]),
            sum(bookie.writable for bookie in bookies),
            sum(bookie.read_only for bookie in bookies),
            len(state["cookies"]),
        )

    async def registered_bookies(self) -> list[str]:
        return sorted(each.bookie_id for each in bookies_of(self._file) if each.writable or each.read_only)

    async def format(self) -> None:
        await self.refuse_if_bookies_live("formatted")
        with self._file.change() as state:
            state |= _empty()

    async def advance_ids(self, beyond: int) -> int:
        with self._file.change() as state:
            state["next_id"] = max(state["next_id"], beyond + 1)
        return int(state["next_id"])

    async def nuke(self) -> None:
        await self.refuse_if_bookies_live("removed")
        self._file.path.unlink()


def _empty() -> State:
    return {"instance_id": str(uuid.uuid4()), "next_id": 0, "ledgers": {}, "cookies": {}, "bookies": {}}


def _digest(settings: TinySettings) -> str:
    password = settings.tiny_password
    return sha256((password.get_secret_value() if password else "").encode()).hexdigest()


def _directory(uri: str) -> Path:
    path = Path(uri.removeprefix("tiny://"))
    if not uri.startswith("tiny:///"):
        raise IncorrectParameterException(f"metadata URI {uri!r} is not of the form tiny:///absolute/directory")
    return path


def create_factory(uri: str, settings: StoreSettings = DEFAULTS) -> TinyFactory:
    """The driver. Raises IncorrectParameterException."""
    return TinyFactory(_directory(uri), settings.of(TinySettings))


def create_admin(uri: str, settings: StoreSettings = DEFAULTS) -> TinyAdmin:
    """Raises as `create_factory` does."""
    return TinyAdmin(_directory(uri), settings.of(TinySettings))
