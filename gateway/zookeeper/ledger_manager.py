"""Ledger metadata in ZooKeeper nodes, as Apache BookKeeper keeps it.

The manager's kind (flat, hierarchical, …) is only a matter of `LedgerPaths` and of the id generator; everything else
is here. A ledger's version is its node's. Source: metadata page, sections 5.2 to 5.5.

Create with a token: when the answer to a create was lost, or the same create comes again, the node found in place
with the token of this create at version 0 is this create's own. Format versions 1 and 2 keep no token: there a lost
answer stays an unknown outcome.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from gateway.ledger_listeners import LedgerListeners, Stored
from gateway.zookeeper.id_generator import IdGenerator
from gateway.zookeeper.ledger_paths import IdRange, LedgerPaths
from gateway.zookeeper.nodes import create_with_parents, remove_empty_parents
from gateway.zookeeper.session import NodeWatch, ZooKeeperSession
from ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataFormatException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
)
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerManager, LedgerMetadataListener, LedgerRecord
from ledger.metadata import LedgerMetadata
from ledger.metadata_codec import decode, encode

_CREATE_ATTEMPTS = 3
_FIRST_FORMAT_WITH_TOKEN = 3


class ZooKeeperLedgerManager(LedgerManager):
    """See the module. The factory tells it of regained connections."""

    def __init__(self, session: ZooKeeperSession, paths: LedgerPaths, ids: IdGenerator) -> None:
        self._session = session
        self._paths = paths
        self._ids = ids
        self._watches: dict[LedgerId, NodeWatch] = {}
        self.listeners = LedgerListeners(self._read_and_watch, self._release)

    # --- one ledger ---------------------------------------------------------------------------------------------

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        if not metadata.creator_token and metadata.format_version >= _FIRST_FORMAT_WITH_TOKEN:
            metadata = replace(metadata, creator_token=random.getrandbits(63) or 1)
        data = encode(metadata)
        if ledger_id is not None:
            await self._create_node(ledger_id, metadata, data)
            return LedgerRecord(ledger_id, metadata, 0)
        while True:
            generated = LedgerId.unscoped(await self._ids.generate())
            try:
                await self._create_node(generated, metadata, data)
            except LedgerExistException:
                # The counter starts anew when its parent is made anew; the next number may be free.
                continue
            return LedgerRecord(generated, metadata, 0)

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        return (await self._read_stored(ledger_id, None)).record

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        _check_version(expected_version)
        data = encode(metadata)
        try:
            stat = await self._session.set(self._path(ledger_id), data, expected_version)
        except NoNodeError:
            raise _missing(ledger_id) from None
        except BadVersionError:
            raise _conflict(ledger_id, expected_version) from None
        return LedgerRecord(ledger_id, metadata, stat.version)

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        if expected_version is not None:
            _check_version(expected_version)
        path = self._path(ledger_id)
        try:
            await self._session.delete(path, -1 if expected_version is None else expected_version)
        except NoNodeError:
            raise _missing(ledger_id) from None
        except BadVersionError:
            raise _conflict(ledger_id, expected_version) from None
        if self._paths.removes_parents:
            try:
                await remove_empty_parents(self._session, path, self._paths.root)
            except BKException:
                # The ledger is gone; an empty node above it harms nobody.
                return

    # --- all ledgers --------------------------------------------------------------------------------------------

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        _check_scope(scope_id)
        wanted = IdRange(
            -1 if start_after is None else start_after,
            IdRange().before if end_before is None else end_before,
        )
        # A copy that lags would list what is gone and miss what is new.
        await self._session.sync(self._paths.root)
        async for run in self._paths.runs(self._children, wanted):
            yield run

    async def _children(self, path: str) -> Sequence[str]:
        try:
            return await self._session.children(path)
        except NoNodeError:
            if path == self._paths.root:
                # Not "no ledgers": whoever takes it for that deletes all of them.
                raise MetaStoreException(f"ZooKeeper has no {path}: the ledgers root was removed") from None
            return ()

    # --- listeners ----------------------------------------------------------------------------------------------

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._path(ledger_id)
        self.listeners.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.remove(ledger_id, listener)

    async def _read_and_watch(self, ledger_id: LedgerId) -> Stored | None:
        watch = self._watches.get(ledger_id)
        if watch is None:
            watch = self._watches[ledger_id] = self._session.on_loop(lambda event: self._on_event(ledger_id, event))
        try:
            return await self._read_stored(ledger_id, watch)
        except NoSuchLedgerExistsOnMetadataServerException:
            return None

    def _on_event(self, ledger_id: LedgerId, event: WatchedEvent) -> None:
        self.listeners.changed(ledger_id)

    def _release(self, ledger_id: LedgerId) -> None:
        if self._watches.pop(ledger_id, None) is not None:
            self._session.remove_data_watch(self._path(ledger_id))

    # --- nodes --------------------------------------------------------------------------------------------------

    def _path(self, ledger_id: LedgerId) -> str:
        _check_scope(ledger_id.scope_id)
        return self._paths.path(ledger_id.ledger_id)

    async def _read_stored(self, ledger_id: LedgerId, watch: NodeWatch | None) -> Stored:
        try:
            data, stat = await self._session.get(self._path(ledger_id), watch)
        except NoNodeError:
            raise _missing(ledger_id) from None
        try:
            return Stored(LedgerRecord(ledger_id, decode(data), stat.version), stat.czxid)
        except MetadataFormatException as error:
            raise MetadataFormatException(f"metadata of ledger {ledger_id}: {error}") from error

    async def _create_node(self, ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes) -> None:
        has_token = metadata.format_version >= _FIRST_FORMAT_WITH_TOKEN
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                await create_with_parents(self._session, self._path(ledger_id), data)
                return
            except NodeExistsError:
                if has_token and await self._is_own(ledger_id, metadata):
                    return
                raise LedgerExistException(f"ledger {ledger_id} exists already") from None
            except UnknownOutcomeException:
                # With a token a second try recognises the first.
                if not has_token or attempt == _CREATE_ATTEMPTS - 1:
                    raise

    async def _is_own(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        try:
            stored = await self.read(ledger_id)
        except (NoSuchLedgerExistsOnMetadataServerException, MetadataFormatException):
            return False
        return stored.version == 0 and stored.metadata.creator_token == metadata.creator_token


def _check_scope(scope_id: int) -> None:
    if scope_id:
        raise IncorrectParameterException(
            f"this ZooKeeper ledger manager keeps ledgers of scope 0 only, not of scope {scope_id}"
        )


def _check_version(version: int) -> None:
    """ZooKeeper takes -1 for any version and has 32 bits; neither may slip through."""
    if not 0 <= version < 1 << 31:
        raise MetadataVersionException(f"no ledger is ever at version {version}")


def _missing(ledger_id: LedgerId) -> NoSuchLedgerExistsOnMetadataServerException:
    return NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")


def _conflict(ledger_id: LedgerId, expected_version: int | None) -> MetadataVersionException:
    return MetadataVersionException(f"ledger {ledger_id} is not at version {expected_version}")
