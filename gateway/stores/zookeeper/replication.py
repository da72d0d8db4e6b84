"""Auto-recovery's metadata in ZooKeeper, where BookKeeper's auditors and workers keep theirs.

A mark is written whenever its ledger is marked, even if its contents do not change, so that a worker that looked
earlier does not delete it (R8). A mark's version is the number of the transaction that wrote it last (`mzxid`): the
version of its node begins at 0 again when a mark is made anew, whoever makes it. All directories of a first mark are
created with it in one transaction. Directories that were left empty, for example by a process that died between two
deletions, are removed when two listings some time apart have found them empty. Source:
docs/protocol/auto-recovery.md#tree, docs/protocol/auto-recovery.md#marks.

Not its job: locks (`ledger_locks`), the election (`auditor_election`), watches (`replication_changes`, `ledger_feed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from bookgate.gateway.stores.zookeeper.auditor_election import AuditorElection
from bookgate.gateway.stores.zookeeper.ledger_feed import ZooKeeperLedgerFeed
from bookgate.gateway.stores.zookeeper.ledger_locks import LedgerLocks
from bookgate.gateway.stores.zookeeper.ledger_paths import LedgerPaths, ScopedPaths
from bookgate.gateway.stores.zookeeper.nodes import (
    children_or_none,
    create_with_parents,
    delete_as_read,
    ensure_node,
    parent_of,
    remove_empty_parents,
)
from bookgate.gateway.stores.zookeeper.replication_changes import ReplicationChanges
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    MetadataFormatException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId, is_number, ledger_name
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.metadata_store import LedgerRecord, Versioned
from bookgate.ledger.replication import (
    LAYOUT,
    PeriodicCheck,
    UnderreplicatedLedger,
    check_layout,
    decode_delay,
    encode_delay,
    mark_name,
)
from bookgate.ledger.replication_store import (
    ANY_VERSION,
    AuditorVote,
    LedgerFeed,
    LedgerFeedListener,
    LedgerLock,
    LockLost,
    Mark,
    RecordKind,
    ReplicationListener,
    ReplicationMetadata,
    VoteListener,
    check_key,
    record_conflict,
)

_READ_TOGETHER = 200
_SWEEP_SECONDS = 60.0
_DIRECTORY = re.compile(r"[0-9a-f]{4}")


class ZooKeeperReplicationMetadata(ReplicationMetadata):
    """The factory reports reconnects and new sessions."""

    def __init__(
        self,
        session: ZooKeeperSession,
        root: str,
        ledger_paths: LedgerPaths,
        sweep_seconds: float = _SWEEP_SECONDS,
    ) -> None:
        self._session = session
        self._ledger_paths = ledger_paths
        self._scoped_paths = ScopedPaths(ledger_paths.root)
        self._paths = ReplicationPaths(root)
        self._sweep_seconds = sweep_seconds
        self._empty: dict[str, float] = {}
        self._layout_checked = False
        self._changes = ReplicationChanges(session, self._paths)
        self._feed = ZooKeeperLedgerFeed(session, ledger_paths)
        self._locks = LedgerLocks(session, self._paths, lambda lock: self._changes.listeners.tell(LockLost(lock)))
        self._election = AuditorElection(session, self._paths)

    def reconnected(self, new_session: bool) -> None:
        self._locks.reconnected(new_session)
        if new_session:
            self._election.session_renewed()
        self._changes.reconnected()
        self._feed.reconnected()

    async def close(self) -> None:
        """Stops all work. Locks and votes end with the session."""
        await self._changes.close()
        await self._feed.close()
        await self._election.close()
        await self._locks.close()

    # --- marks --------------------------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None = None) -> Mark:
        path = self._paths.mark(ledger_id)
        await self._check_layout()
        while True:
            try:
                content, stat = await self._session.get(path)
                mark = UnderreplicatedLedger.decode(ledger_id, content).with_replicas(replicas, ctime_ms)
                stat = await self._session.set(path, mark.encode(), stat.version)
                return Versioned(mark, stat.mzxid)
            except BadVersionError:
                continue
            except NoNodeError:
                mark = UnderreplicatedLedger(ledger_id).with_replicas(replicas, ctime_ms)
            zxid = await self._create_mark(path, mark.encode())
            if zxid is not None:
                return Versioned(mark, zxid)

    async def read_mark(self, ledger_id: int) -> Mark | None:
        try:
            content, stat = await self._session.get(self._paths.mark(ledger_id))
        except NoNodeError:
            return None
        return Versioned(UnderreplicatedLedger.decode(ledger_id, content), stat.mzxid)

    async def marks(self, start_after: int | None = None, page_size: int = 1000) -> AsyncIterator[Sequence[Mark]]:
        await self._session.sync(self._paths.root)
        page: list[Mark] = []
        async for numbers in self._marked(start_after):
            for start in range(0, len(numbers), _READ_TOGETHER):
                page += await self._read_marks(numbers[start : start + _READ_TOGETHER])
                while len(page) >= page_size:
                    yield page[:page_size]
                    page = page[page_size:]
        if page:
            yield page
        await self._sweep()

    async def _marked(self, start_after: int | None) -> AsyncIterator[Sequence[int]]:
        """Ledgers that have a directory for a mark, ascending: those of scope 0 first."""
        after = -1 if start_after is None else start_after
        for root, digits in ((self._paths.marks, 16), (self._paths.scoped_marks, 32)):
            first = f"{after + 1:0{digits}x}"
            if len(first) > digits:
                continue  # all that is here is below
            async for prefix in self._prefixes(root, digits - 4, first):
                names = await self._directories(_directory(root, prefix))
                found = [int(prefix + name, 16) for name in names if prefix + name >= first]
                yield [number for number in found if is_number(number) and self._paths.marks_of(number) == root]

    async def delete_mark(self, ledger_id: int, expected_version: int) -> bool:
        path = self._paths.mark(ledger_id)
        try:
            if not await delete_as_read(self._session, path, lambda content, stat: stat.mzxid == expected_version):
                return False
        except BadVersionError:
            return False
        except NoNodeError:
            return True
        with contextlib.suppress(BKException):
            # The mark is gone; an empty directory above it is found by the next listings.
            await remove_empty_parents(self._session, path, self._paths.marks_of(ledger_id))
        return True

    async def _create_mark(self, path: str, content: bytes) -> int | None:
        """The number of the transaction; None if it must be repeated, because a node was created or removed
        meanwhile.
        """
        lowest = parent_of(path)
        with contextlib.suppress(NodeExistsError, NoNodeError):
            # Among many marks, most have their upper directories in common.
            return await self._session.create_together([(lowest, b""), (path, content)])
        missing = [(path, content)]
        directory = lowest
        while len(directory) > len(self._paths.base) and await self._session.exists(directory) is None:
            missing.append((directory, b""))
            directory = parent_of(directory)
        if len(directory) <= len(self._paths.base):
            await ensure_node(self._session, self._paths.base, self._paths.root)
        try:
            return await self._session.create_together(missing[::-1])
        except (NodeExistsError, NoNodeError):
            return None

    async def _prefixes(self, root: str, digits: int, first: str, above: str = "") -> AsyncIterator[str]:
        """So many hexadecimal digits of directories below `above` in a tree of marks, ascending, from `first` on."""
        if len(above) == digits:
            yield above
            return
        lowest = first[len(above) : len(above) + 4] if first.startswith(above) else ""
        for name in await self._directories(_directory(root, above), lowest):
            async for prefix in self._prefixes(root, digits, first, above + name):
                yield prefix

    async def _directories(self, path: str, first: str = "") -> list[str]:
        names = await children_or_none(self._session, path)
        found = sorted(name for name in names or () if _DIRECTORY.fullmatch(name))
        if names is not None and not names and path not in (self._paths.marks, self._paths.scoped_marks):
            self._note_empty(path)
        return [name for name in found if name >= first]

    async def _read_marks(self, ids: Sequence[int]) -> list[Mark]:
        marks = []
        contents = await self._session.get_many([self._paths.mark(ledger_id) for ledger_id in ids])
        for ledger_id, content in zip(ids, contents, strict=True):
            if isinstance(content, NoNodeError):
                self._note_empty(parent_of(self._paths.mark(ledger_id)))
            elif isinstance(content, Exception):
                raise MetadataFormatException(f"the mark of ledger {ledger_name(ledger_id)} can't be read: {content!r}")
            else:
                marks.append(Versioned(UnderreplicatedLedger.decode(ledger_id, content[0]), content[1].mzxid))
        return marks

    def _note_empty(self, path: str) -> None:
        self._empty.setdefault(path, asyncio.get_running_loop().time())

    async def _sweep(self) -> None:
        """Removes directories that were empty long enough; one that is used again is not empty, and stays."""
        latest = asyncio.get_running_loop().time() - self._sweep_seconds
        for path in [path for path, since in self._empty.items() if since <= latest]:
            del self._empty[path]
            try:
                await self._session.delete(path)
                await remove_empty_parents(self._session, path, self._paths.marks_above(path))
            except (NotEmptyError, NoNodeError):
                continue

    async def _check_layout(self) -> None:
        """Creates the tree if it is missing. Raises MetadataFormatException for one of another layout."""
        if self._layout_checked:
            return
        for path, content in ((self._paths.layout, LAYOUT), (self._paths.marks, b""), (self._paths.locks, b"")):
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._session, path, content, self._paths.root)
        content, _ = await self._session.get(self._paths.layout)
        check_layout(content)
        self._layout_checked = True

    # --- locks and votes ----------------------------------------------------------------------------------------

    async def try_lock(self, ledger_id: int, holder: str) -> LedgerLock | None:
        mark_name(ledger_id)
        await self._check_layout()
        return await self._locks.try_lock(ledger_id, holder)

    async def release(self, lock: LedgerLock) -> None:
        await self._locks.release(lock)

    async def is_held(self, lock: LedgerLock) -> bool:
        return await self._locks.is_held(lock)

    async def lock_holders(self) -> Mapping[int, str]:
        return await self._locks.holders()

    async def write_ledger(self, lock: LedgerLock, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        ledger_id, data = LedgerId.of_number(lock.ledger_id), encode(metadata)
        path = self._scoped_paths.path(ledger_id) if ledger_id.scope_id else self._ledger_paths.path(lock.ledger_id)
        if not 0 <= expected_version < 1 << 31:
            raise MetadataVersionException(f"ledger {ledger_id} is never at version {expected_version}")
        try:
            stat = await self._locks.set_under(lock, path, data, expected_version)
        except NoNodeError:
            raise NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {ledger_id}") from None
        except BadVersionError:
            raise MetadataVersionException(f"ledger {ledger_id} is not at version {expected_version}") from None
        return LedgerRecord(ledger_id, metadata, stat.version)

    async def stand_for_auditor(self, voter: str, listener: VoteListener) -> AuditorVote:
        return await self._election.stand(voter, listener)

    async def auditor(self) -> str | None:
        return await self._election.auditor()

    # --- switches, times, records -------------------------------------------------------------------------------

    async def is_enabled(self) -> bool:
        return await self._session.exists(self._paths.disable) is None

    async def set_enabled(self, enabled: bool) -> None:
        try:
            if enabled:
                await self._session.delete(self._paths.disable)
            else:
                await create_with_parents(self._session, self._paths.disable, b"", self._paths.root)
        except (NoNodeError, NodeExistsError):
            raise IllegalOpException(f"auto-recovery is {'enabled' if enabled else 'disabled'} already") from None

    async def lost_bookie_delay(self) -> int | None:
        content = await self._get(self._paths.delay)
        return None if content is None else decode_delay(content)

    async def set_lost_bookie_delay(self, seconds: int, *, only_if_absent: bool = False) -> int:
        content = encode_delay(seconds)
        while True:
            if only_if_absent and (present := await self.lost_bookie_delay()) is not None:
                return present
            if await self._put(self._paths.delay, content, replace=not only_if_absent, open_to_all=True):
                return seconds

    async def check_time(self, check: PeriodicCheck) -> int | None:
        content = await self._get(self._paths.check(check))
        return None if content is None else check.decode(content)

    async def set_check_time(self, check: PeriodicCheck, ctime_ms: int) -> None:
        await self._put(self._paths.check(check), check.encode(ctime_ms))

    async def records(self, kind: RecordKind) -> Mapping[str, Versioned[bytes]]:
        directory = self._paths.records(kind)
        keys = sorted(await children_or_none(self._session, directory) or ())
        found: dict[str, Versioned[bytes]] = {}
        for start in range(0, len(keys), _READ_TOGETHER):
            part = keys[start : start + _READ_TOGETHER]
            contents = await self._session.get_many([f"{directory}/{key}" for key in part])
            for key, content in zip(part, contents, strict=True):
                if not isinstance(content, Exception):
                    found[key] = Versioned(content[0], content[1].version)
        return found

    async def read_record(self, kind: RecordKind, key: str) -> Versioned[bytes] | None:
        try:
            content, stat = await self._session.get(f"{self._paths.records(kind)}/{check_key(key)}")
        except NoNodeError:
            return None
        return Versioned(content, stat.version)

    async def write_record(self, kind: RecordKind, key: str, value: bytes, expected_version: int | None) -> int:
        path = f"{self._paths.records(kind)}/{check_key(key)}"
        while True:
            try:
                if expected_version is None:
                    await create_with_parents(self._session, path, value, self._paths.root)
                    return 0
                stat = await self._session.set(path, value, _storable(expected_version))
                return int(stat.version)
            except NodeExistsError:
                raise record_conflict(kind, key, expected_version) from None
            except BadVersionError:
                raise record_conflict(kind, key, expected_version) from None
            except NoNodeError:
                if expected_version != ANY_VERSION:
                    raise record_conflict(kind, key, expected_version) from None
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._session, path, value, self._paths.root)
                return 0

    async def remove_record(self, kind: RecordKind, key: str, expected_version: int = ANY_VERSION) -> None:
        try:
            await self._session.delete(f"{self._paths.records(kind)}/{check_key(key)}", _storable(expected_version))
        except NoNodeError:
            return
        except BadVersionError:
            raise record_conflict(kind, key, expected_version) from None

    def watch(self, listener: ReplicationListener) -> Callable[[], None]:
        return self._changes.listeners.add(listener)

    def watch_ledgers(self, listener: LedgerFeedListener) -> LedgerFeed:
        return self._feed.feeds.add(listener)

    async def _get(self, path: str) -> bytes | None:
        try:
            return (await self._session.get(path))[0]
        except NoNodeError:
            return None

    async def _put(self, path: str, content: bytes, *, replace: bool = True, open_to_all: bool = False) -> bool:
        """Replaces a node's content, or creates it; false if it exists and `replace` is false."""
        while True:
            if replace:
                with contextlib.suppress(NoNodeError):
                    await self._session.set(path, content, -1)
                    return True
            try:
                await self._session.create(path, content, open_to_all=open_to_all)
                return True
            except NodeExistsError:
                if not replace:
                    return False
            except NoNodeError:
                await ensure_node(self._session, self._paths.base, self._paths.root)


def _directory(root: str, digits: str) -> str:
    return "/".join((root, *(digits[at : at + 4] for at in range(0, len(digits), 4))))


def _storable(version: int) -> int:
    """Caps a version at ZooKeeper's 32 bits; no node ever has the highest one."""
    return min(version, (1 << 31) - 1)
