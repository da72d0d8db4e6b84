"""Ledger metadata in ZooKeeper nodes, in Apache BookKeeper's layout.

The kind of manager (flat, hierarchical, …) affects only `LedgerPaths` and the id generator; everything else is here. A
ledger's version is its node's. Source: docs/protocol/metadata.md#ledger-operations,
docs/protocol/metadata.md#listing-ledgers.

Create with a token: if the response to a create was lost, or the same create is repeated, an existing node with this
create's token is its own. A node that was changed or removed since has no token: then a lost response remains an
unknown outcome, as it does in format versions 1 and 2, which have no token.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.gateway.stores.ledger_listeners import IncarnatedRecord, LedgerListeners
from bookgate.gateway.stores.shared_run import SharedRun
from bookgate.gateway.stores.zookeeper.create_queue import CreateQueue
from bookgate.gateway.stores.zookeeper.id_blocks import IdBlocks
from bookgate.gateway.stores.zookeeper.id_generator import IdGenerator
from bookgate.gateway.stores.zookeeper.kazoo_thread import NodeWatch
from bookgate.gateway.stores.zookeeper.ledger_listing import (
    READ_TOGETHER,
    LeafListings,
    ListedSizes,
    RequestedLedgers,
    list_ids,
    within,
)
from bookgate.gateway.stores.zookeeper.ledger_paths import IdRange, LedgerPaths, ScopedPaths
from bookgate.gateway.stores.zookeeper.nodes import create_with_parents, remove_empty_parents
from bookgate.gateway.stores.zookeeper.requests import NodeContent
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.creator import Creator, creator_of
from bookgate.ledger.errors import (
    BKException,
    IncorrectParameterException,
    LedgerExistException,
    MetadataFormatException,
    MetadataVersionException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnknownOutcomeException,
    ZKException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import (
    CreateRequest,
    LedgerManager,
    LedgerMetadataListener,
    LedgerRecord,
    RawLedgerRecord,
    made_anew,
    require_same,
)

T = TypeVar("T")

_CREATE_ATTEMPTS = 3
_FIRST_FORMAT_WITH_TOKEN = 3

_PARALLEL = 64
"""Concurrent calls for one caller with many ledgers, and for all such callers together."""


@dataclass(frozen=True, slots=True)
class _LedgerWatch:
    """Reports a change to the listeners of a ledger. All objects of one ledger are equal, so it is reported once."""

    listeners: LedgerListeners
    ledger_id: LedgerId

    def __call__(self, event: WatchedEvent) -> None:
        self.listeners.changed(self.ledger_id)


class ZooKeeperLedgerManager(LedgerManager):
    """See the module. The factory reports restored connections."""

    def __init__(self, session: ZooKeeperSession, paths: LedgerPaths, ids: IdGenerator) -> None:
        self._session = session
        self._paths = paths
        # The other managers remove no empty nodes, or have all ledgers below one node.
        self._scoped = ScopedPaths(paths.root) if paths.removes_parents else None
        self._ids = IdBlocks(ids)
        self._creations = CreateQueue(session)
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._listed = ListedSizes()
        self._requested = RequestedLedgers()
        self._leaves = LeafListings(session)
        self._caught_up = SharedRun(lambda: session.sync(paths.root))
        self.listeners = LedgerListeners(self._read_and_watch, self._release)

    async def close(self) -> None:
        """Ends everything in progress."""
        await self.listeners.close()
        await self._ids.close()
        await self._creations.close()

    # --- one ledger ---------------------------------------------------------------------------------------------

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        metadata, data = _with_token(metadata)
        if ledger_id is not None:
            return _created(ledger_id, metadata, await self._create_node(ledger_id, metadata, data))
        return await self._create_generated(await self._ids.take(), metadata, data)

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        try:
            numbers = await self._ids.take_many(sum(request.ledger_id is None for request in requests))
        except BKException as error:
            return [await self._create_or_fail(request, None, error) for request in requests]
        given = iter(numbers)
        calls = [self._create_or_fail(r, None if r.ledger_id is not None else next(given), None) for r in requests]
        return await asyncio.gather(*calls)

    async def _create_or_fail(
        self, request: CreateRequest, number: int | None, no_number: BKException | None
    ) -> LedgerRecord | BKException:
        """Creates one of many ledgers, with the given id or `number`; `no_number` is the error if there is no
        number.
        """
        try:
            if request.ledger_id is not None:
                return await self._create_given(request.ledger_id, *_with_token(request.metadata))
            if number is None:
                return no_number or MetaStoreException("there is no ledger id")
            return await self._create_generated(number, *_with_token(request.metadata))
        except BKException as error:
            return error

    async def _create_given(self, ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes) -> LedgerRecord:
        czxid = await self._create_together(ledger_id, metadata, data)
        if czxid is None:
            async with self._slots:
                czxid = await self._create_node(ledger_id, metadata, data)
        return _created(ledger_id, metadata, czxid)

    async def _create_generated(self, number: int, metadata: LedgerMetadata, data: bytes) -> LedgerRecord:
        """Creates a ledger with a fresh id. Concurrent creations share a transaction, which rarely fails."""
        while True:
            ledger_id = LedgerId.unscoped(number)
            try:
                czxid = await self._create_together(ledger_id, metadata, data)
                if czxid is None:
                    czxid = await self._create_node(ledger_id, metadata, data)
                return _created(ledger_id, metadata, czxid)
            except LedgerExistException:
                # The counter restarts when its parent is created anew; the next number may be free.
                number = await self._ids.take()

    async def _create_together(self, ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes) -> int | None:
        """The node's czxid; None if the shared transaction failed: a creation by itself then reveals the cause."""
        try:
            return await self._creations.create(self._path(ledger_id), data)
        except UnknownOutcomeException as lost:
            if not _has_token(metadata):
                raise
            return await self._create_node(ledger_id, metadata, data, lost)

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        return (await self._read_stored(ledger_id, None)).marked()

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        return await self._read_parts(ledger_ids, lambda ledger_id, content: _stored(ledger_id, content).marked())

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[RawLedgerRecord | BKException]:
        """Reads as many ledgers at a time as probably fit, judging by the sizes read before."""
        results: list[RawLedgerRecord | BKException] = []
        room = max_bytes
        while len(results) < len(ledger_ids) and room > 0:
            following = ledger_ids[len(results) : len(results) + READ_TOGETHER]
            found = await self._read_fitting(following, room)
            results += found
            room -= sum(map(_size, found))
        return results

    async def _read_fitting(self, ledger_ids: Sequence[LedgerId], room: int) -> list[RawLedgerRecord | BKException]:
        """Reads the first ones, at least one. Of larger ones than expected only what fits is kept: the others are read
        again, now that their sizes are known.
        """
        async with self._requested.place(lambda: self._listed.fitting(ledger_ids, room)) as count:
            wanted = ledger_ids[:count]
            found = await self._read_together(wanted, _undecoded)
            sizes = list(map(_size, found))
            self._listed.saw(wanted, sizes)
            return found[: within(sizes, room)]

    async def _read_parts(
        self, ledger_ids: Sequence[LedgerId], of: Callable[[LedgerId, NodeContent | Exception], T]
    ) -> list[T | BKException]:
        parts = [ledger_ids[start : start + READ_TOGETHER] for start in range(0, len(ledger_ids), READ_TOGETHER)]
        found = await asyncio.gather(*(self._read_together(part, of) for part in parts))
        return [record for part in found for record in part]

    async def _read_together(
        self, ledger_ids: Sequence[LedgerId], of: Callable[[LedgerId, NodeContent | Exception], T]
    ) -> list[T | BKException]:
        """Applies `of` to each node; if it raises, the error is the result."""
        records: list[T | BKException] = []
        paths = [self._path_or_error(ledger_id) for ledger_id in ledger_ids]
        async with self._slots:
            contents = iter(await self._session.get_many([path for path in paths if isinstance(path, str)]))
        for ledger_id, path in zip(ledger_ids, paths, strict=True):
            if isinstance(path, BKException):
                records.append(path)
                continue
            content = next(contents)
            try:
                records.append(of(ledger_id, content))
            except BKException as error:
                records.append(error)
        return records

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        _check_version(expected_version)
        data = encode(metadata)
        try:
            stat = await self._session.set(self._path(ledger_id), data, expected_version)
        except NoNodeError:
            raise _missing(ledger_id) from None
        except BadVersionError:
            raise _conflict(ledger_id, expected_version) from None
        return LedgerRecord(ledger_id, metadata, stat.version, incarnation=stat.czxid)

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        if record.incarnation is None:
            return await super().write_to(record, metadata)
        await self._require_incarnation(record)
        written = await self.write(record.ledger_id, metadata, record.version)
        require_same(record, written)
        return written

    async def remove_record(self, record: LedgerRecord) -> None:
        if record.incarnation is None:
            await super().remove_record(record)
            return
        await self._require_incarnation(record)
        await self.remove(record.ledger_id, record.version)

    async def _require_incarnation(self, record: LedgerRecord) -> None:
        """Raises NoSuchLedgerExistsOnMetadataServerException if there is no such ledger, or another one.

        ZooKeeper can't check this in one transaction with the change: what is deleted and created anew in the moment
        between, at the same version, is taken for the record's.
        """
        await self._caught_up.wait()
        stat = await self._session.exists(self._path(record.ledger_id))
        if stat is None:
            raise _missing(record.ledger_id)
        if stat.czxid != record.incarnation:
            raise made_anew(record.ledger_id)

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
                # The ledger is gone; an empty node above it does no harm.
                return

    # --- all ledgers --------------------------------------------------------------------------------------------

    async def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        if scope_id:
            async with aclosing(self._scoped_ids(scope_id, start_after, end_before)) as runs:
                async for run in runs:
                    yield run
            return
        wanted = IdRange(
            -1 if start_after is None else start_after,
            IdRange().before if end_before is None else end_before,
        )
        async with aclosing(list_ids(self._session, self._paths, wanted, self._leaves)) as runs:
            async for run in runs:
                yield run

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        if self._scoped is None:
            return
        await self._session.sync(self._paths.root)
        async with aclosing(self._scoped.scopes(self._children, start_after)) as runs:
            async for run in runs:
                yield run
        await self._require_root()

    async def _scoped_ids(
        self, scope_id: int, start_after: int | None, end_before: int | None
    ) -> AsyncGenerator[Sequence[int], None]:
        await self._session.sync(self._paths.root)
        scoped = self._require_scopes(f"of scope {scope_id}")
        async with aclosing(scoped.runs(scope_id, self._children, start_after, end_before)) as runs:
            async for run in runs:
                yield run
        await self._require_root()

    async def _children(self, path: str) -> Sequence[str]:
        try:
            return await self._session.children(path)
        except NoNodeError:
            return ()

    async def _require_root(self) -> None:
        """Raises MetaStoreException if the root is gone. A scope without nodes has no ledgers, a missing root proves
        nothing.
        """
        if await self._session.exists(self._paths.root) is None:
            raise MetaStoreException(f"ZooKeeper has no {self._paths.root}: the ledgers root was removed")

    # --- listeners ----------------------------------------------------------------------------------------------

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self._path(ledger_id)
        self.listeners.add(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        self.listeners.remove(ledger_id, listener)

    async def _read_and_watch(self, ledger_id: LedgerId) -> IncarnatedRecord | None:
        try:
            return await self._read_stored(ledger_id, _LedgerWatch(self.listeners, ledger_id))
        except NoSuchLedgerExistsOnMetadataServerException:
            return None

    def _release(self, ledger_id: LedgerId) -> None:
        self._session.remove_data_watch(self._path(ledger_id))

    # --- nodes --------------------------------------------------------------------------------------------------

    def _path_or_error(self, ledger_id: LedgerId) -> str | BKException:
        try:
            return self._path(ledger_id)
        except BKException as error:
            return error

    def _path(self, ledger_id: LedgerId) -> str:
        if ledger_id.scope_id:
            return self._require_scopes(str(ledger_id)).path(ledger_id)
        return self._paths.path(ledger_id.low)

    def _require_scopes(self, what: str) -> ScopedPaths:
        if self._scoped is None:
            raise IncorrectParameterException(
                f"this cluster's ledger manager keeps ledgers of scope 0 only, not {what}; a cluster that is to have "
                "scopes needs one of the hierarchical managers but the legacy one"
            )
        return self._scoped

    async def _read_stored(self, ledger_id: LedgerId, watch: NodeWatch | None) -> IncarnatedRecord:
        try:
            return _stored(ledger_id, await self._session.get(self._path(ledger_id), watch))
        except NoNodeError:
            raise _missing(ledger_id) from None

    async def _create_node(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes, lost: UnknownOutcomeException | None = None
    ) -> int | None:
        """Creates the node; returns its czxid. `lost`: an earlier attempt may have succeeded, so no failure may say
        that nothing was done.
        """
        has_token = _has_token(metadata)
        for _ in range(_CREATE_ATTEMPTS):
            try:
                creator, czxid = await self._create_or_find(ledger_id, metadata, data)
            except UnknownOutcomeException as error:
                if not has_token:
                    raise
                # With a token, another attempt recognises the first one.
                lost = error
            except MetaStoreException as error:
                if lost is None:
                    raise
                raise UnknownOutcomeException(f"{lost}; {error}") from error
            else:
                if creator is Creator.SELF:
                    return czxid
                if creator is Creator.ANOTHER or lost is None:
                    raise LedgerExistException(f"ledger {ledger_id} exists already")
                raise UnknownOutcomeException(f"{lost}; by now ledger {ledger_id} was changed or removed by another")
        raise lost or UnknownOutcomeException(f"whether ledger {ledger_id} was created can't be told")

    async def _create_or_find(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, data: bytes
    ) -> tuple[Creator, int | None]:
        """Who created the ledger that exists now, unknown if it is gone by now; and its node's czxid."""
        try:
            czxid = await create_with_parents(self._session, self._path(ledger_id), data, self._paths.root)
        except NodeExistsError:
            if not _has_token(metadata):
                return Creator.ANOTHER, None
        else:
            return Creator.SELF, czxid
        try:
            found = await self.read(ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            return Creator.UNKNOWN, None
        except MetadataFormatException:
            return Creator.ANOTHER, None
        except MetaStoreException as error:
            raise UnknownOutcomeException(f"whose ledger {ledger_id} is can't be told: {error}") from error
        return creator_of(found, metadata), found.incarnation


def _created(ledger_id: LedgerId, metadata: LedgerMetadata, czxid: int | None) -> LedgerRecord:
    return LedgerRecord(ledger_id, metadata, 0, incarnation=czxid)


def _has_token(metadata: LedgerMetadata) -> bool:
    return metadata.format_version >= _FIRST_FORMAT_WITH_TOKEN


def _with_token(metadata: LedgerMetadata) -> tuple[LedgerMetadata, bytes]:
    """The metadata with a creator token, and its bytes."""
    if not metadata.creator_token and _has_token(metadata):
        metadata = replace(metadata, creator_token=random.getrandbits(63) or 1)
    return metadata, encode(metadata)


def _content(ledger_id: LedgerId, content: NodeContent | Exception) -> NodeContent:
    if isinstance(content, NoNodeError):
        raise _missing(ledger_id)
    if isinstance(content, Exception):
        raise ZKException(f"ZooKeeper refused to read ledger {ledger_id}: {content!r}")
    return content


def _undecoded(ledger_id: LedgerId, content: NodeContent | Exception) -> RawLedgerRecord:
    data, stat = _content(ledger_id, content)
    return RawLedgerRecord(ledger_id, data, stat.version, stat.ctime)


def _size(listed: RawLedgerRecord | BKException) -> int:
    return 0 if isinstance(listed, BKException) else len(listed.data)


def _stored(ledger_id: LedgerId, content: NodeContent | Exception) -> IncarnatedRecord:
    """The ledger in a node. Raises the error that the node's error stands for, or MetadataFormatException."""
    data, stat = _content(ledger_id, content)
    return IncarnatedRecord(RawLedgerRecord(ledger_id, data, stat.version, stat.ctime).record(), stat.czxid)


def _check_version(version: int) -> None:
    """Rejects versions that ZooKeeper would misinterpret: it takes -1 for any version, and has 32 bits."""
    if not 0 <= version < 1 << 31:
        raise MetadataVersionException(f"no ledger is ever at version {version}")


def _missing(ledger_id: LedgerId) -> NoSuchLedgerExistsOnMetadataServerException:
    return NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}")


def _conflict(ledger_id: LedgerId, expected_version: int | None) -> MetadataVersionException:
    return MetadataVersionException(f"ledger {ledger_id} is not at version {expected_version}")
