"""Watches auto-recovery on ZooKeeper's tree, beside a process of BookKeeper's: R12, R16, R17 and R18.

It hears of every transaction when it is committed, and keeps the marks, locks and votes as they are then, with the
sessions that made them. So it knows of each change who held what at that moment, whatever those who made it believed.

*R12.* Who sends a mark to a gateway is in office, or was a moment ago, or marks itself, in limbo; a mark that is made
again loses nothing that it said. *R16.* A collector takes no surplus copy of a ledger that another has locked, that is
not closed, or that names its bookie. *R17.* The members of a complete fragment change only in the session that holds
the ledger's lock, and in the end no lock or vote is left of a bookie's earlier life. *R18.* Nothing of a ledger that
the peer has locked changes by a repair, nor is its mark taken away; nobody else's bookies are marked while the peer is
in office; no field of its marks is lost; and when it has gone all its marks are worked off.

Source: docs/protocol/auto-recovery.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.metadata import LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.replication import UnderreplicatedLedger, decode_lock, decode_vote, ledger_id_of_mark
from bookgate.ledger.replication_store import RecordKind
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2 import (
    ClaimRequest,
    MarkRequest,
    WriteLedgerRequest,
)
from tests.history import events
from tests.history.recorder import Recorder
from tests.history.violations import (
    ClaimOutlived,
    InvariantViolated,
    NeededCopyCollected,
    NotRepaired,
    PeerIgnored,
    SeveralAuditors,
)
from tests.simulation.foreign_peer import ForeignPeer
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.simulated_store import SimulatedStore
from tests.simulation.world import World
from tests.simulation.znode_tree import Event, Happened, Transaction

_SERVICE = "/bookkeeper.gateway.v1.ReplicationService/"
_OFFICE_IS_MISSED_SECONDS = 12.0
"""At most, after the loss of a vote: a gateway that is cut off does not hear of it."""
_LOCK_IS_MISSED_SECONDS = 12.0
_CLAIMS_END_SECONDS = 40.0
_REPAIRED_WITHIN_SECONDS = 400.0
_LOOK_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """A lock or a vote."""

    session: int
    owner: str
    """As it names itself."""
    since: float


class TreeWatch:
    """See the module."""

    def __init__(
        self, world: World, store: SimulatedStore, recorder: Recorder, peer: ForeignPeer, damaged: set[str]
    ) -> None:
        """`damaged` are bookies that have lost data."""
        self._world = world
        self._store = store
        self._recorder = recorder
        self._peer = peer
        self._damaged = damaged
        self._paths = ReplicationPaths(store.ledgers_root)
        self._marks: dict[int, UnderreplicatedLedger] = {}
        self._locks: dict[int, _Claim] = {}
        self._votes: dict[str, _Claim] = {}
        self._left_office: dict[str, float] = {}
        """When bookies that were auditor were that last."""
        self._session = 0
        """Whose transaction is being told."""
        self._ended: dict[str, float] = {}
        """When the last life of a bookie's host ended."""
        self.looked: Counter[str] = Counter()
        store.on_transaction.append(self._committed)
        store.on_change.insert(0, self._changed)
        store.observers.append(self._observed)

    def started(self, bookie: SimulatedBookie) -> None:
        """A bookie has begun a life."""

        def ended() -> None:
            self._ended[bookie.name] = self._world.now

        if bookie.process is not None:
            bookie.process.on_end.append(ended)

    # --- the tree

    def _committed(self, transaction: Transaction, changed: Sequence[Event]) -> None:
        self._session = transaction.session
        for happened, path in changed:
            if path.startswith(f"{self._paths.marks}/"):
                self._mark_changed(happened, path)
            elif path.startswith(f"{self._paths.locks}/"):
                self._lock_changed(happened, path)
            elif path.startswith(f"{self._paths.election}/V_"):
                self._vote_changed(happened, path)

    def _mark_changed(self, happened: Happened, path: str) -> None:
        number = ledger_id_of_mark(path.rpartition("/")[2])
        if number is None or happened is Happened.CHILDREN:
            return
        ours = self._session not in self._peer.sessions
        if happened is Happened.DELETED:
            del self._marks[number]
            if ours:
                self._respects_lock(number, "the mark of ledger {} was removed", _LOCK_IS_MISSED_SECONDS)
            return
        before = self._marks.get(number)
        after = self._marks[number] = UnderreplicatedLedger.decode(number, self._content(path))
        if ours and before is not None:
            self._loses_nothing(before, after)

    def _loses_nothing(self, before: UnderreplicatedLedger, after: UnderreplicatedLedger) -> None:
        self.looked["R12"] += 1
        lost = set(before.replicas) - set(after.replicas)
        if lost:
            self._fail(SeveralAuditors(f"a mark of ledger {before.ledger_id} lost {', '.join(sorted(lost))}"))
        if before.ctime_ms not in (None, after.ctime_ms):
            self._fail(SeveralAuditors(f"a mark of ledger {before.ledger_id} lost its time"))
        if before.unknown_fields:
            self.looked["R18"] += 1
            if not set(before.unknown_fields) <= set(after.unknown_fields):
                self._fail(PeerIgnored(f"a mark of ledger {before.ledger_id} lost {before.unknown_fields}"))

    def _lock_changed(self, happened: Happened, path: str) -> None:
        number = ledger_id_of_mark(path.rpartition("/")[2])
        if number is None:
            return
        if happened is Happened.DELETED:
            lock = self._locks.pop(number, None)
            if lock is not None and lock.session in self._peer.sessions and self._session not in self._peer.sessions:
                self._fail(PeerIgnored(f"the peer's lock of ledger {number} was taken away"))
        elif happened is Happened.CREATED:
            self._locks[number] = _Claim(self._session, decode_lock(self._content(path)), self._world.now)

    def _vote_changed(self, happened: Happened, path: str) -> None:
        before = self._auditor()
        if happened is Happened.DELETED:
            self._votes.pop(path, None)
        elif happened is Happened.CREATED:
            self._votes[path] = _Claim(self._session, decode_vote(self._content(path)), self._world.now)
        if before is not None and self._auditor() != before:
            self._left_office[before.owner] = self._world.now

    def _auditor(self) -> _Claim | None:
        return self._votes[min(self._votes)] if self._votes else None

    def _content(self, path: str) -> bytes:
        return self._store.ensemble.tree.content(path)[0]

    # --- repairs and marks

    def _changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        if before is None or after is None or not _is_repair(before.metadata, after.metadata):
            return
        number = before.ledger_id.low
        self._recorder.add(events.LedgerRepaired(self._recorder.now, str(number), after.version))
        self._respects_lock(number, "ledger {} was repaired", 0.0)
        self.looked["R17"] += 1
        lock = self._locks.get(number)
        if lock is None or lock.session != self._session:
            self._fail(ClaimOutlived(f"ledger {number} was repaired by one whose lock had ended"))

    def _respects_lock(self, number: int, what: str, tolerated: float) -> None:
        lock = self._locks.get(number)
        if lock is None or lock.session not in self._peer.sessions:
            return
        self.looked["R18"] += 1
        held = self._world.now - lock.since
        if held >= tolerated:
            self._fail(PeerIgnored(f"{what.format(number)}, which the peer had locked for {held:.2f} s"))

    def _observed(self, gateway: str, method: str, stream: str, sent: bool, message: bytes) -> None:
        if sent or not method.startswith(_SERVICE):
            return
        match method.removeprefix(_SERVICE):
            case "Mark":
                host = stream.removeprefix("ipv4:").partition(":")[0]
                self._marks_in_office(host, MarkRequest.FromString(message).replicas)
            case "Claim":
                request = ClaimRequest.FromString(message)
                lock = self._locks.get(request.try_lock.ledger_id) if request.HasField("try_lock") else None
                self.looked["R18"] += lock is not None and lock.session in self._peer.sessions
            case "WriteLedger":
                token = WriteLedgerRequest.FromString(message).token
                for number, lock in list(self._locks.items()):
                    if token.startswith(f"{lock.session:x}-"):
                        self._peer.steal(number)

    def _marks_in_office(self, host: str, replicas: Sequence[str]) -> None:
        bookie = self._world.bookies.get(host)
        if bookie is None or list(replicas) == [bookie.bookie_id]:
            # In limbo it marks itself: nobody knows better what it lacks.
            return
        auditor, now = self._auditor(), self._world.now
        by_peer = auditor is not None and auditor.session in self._peer.sessions
        self.looked["R12"] += 1
        self.looked["R18"] += by_peer
        if auditor is not None and auditor.owner == bookie.bookie_id:
            return
        left = self._left_office.get(bookie.bookie_id)
        if left is None or now - left > _OFFICE_IS_MISSED_SECONDS:
            when = "never was" if left is None else f"was {now - left:.1f} s ago"
            seen = f"{bookie.bookie_id} marks a ledger, and {when} the auditor"
            self._fail(PeerIgnored(f"{seen}: the peer is") if by_peer else SeveralAuditors(seen))

    # --- collectors

    def collected(self, bookie_id: str, number: int) -> bool:
        """A bookie has just deleted a ledger; whether as surplus, which is judged here."""
        record, lock = self._store.ledgers.get(number), self._locks.get(number)
        holder = "" if lock is None else lock.owner
        if record is None or (holder != bookie_id and not _is_surplus(record.metadata, bookie_id)):
            return False
        self.looked["R16"] += 1
        if lock is not None and lock.session in self._peer.sessions:
            self.looked["R18"] += 1
        problem = ""
        if record.metadata.state is not LedgerState.CLOSED:
            problem = f"is {record.metadata.state.name}"
        elif bookie_id in record.metadata.bookies:
            problem = "is to have it"
        elif lock is not None and holder != bookie_id:
            problem = f"is locked by {holder or 'somebody'}"
        if problem:
            self._fail(NeededCopyCollected(f"{bookie_id} deleted its copies of ledger {number}, which {problem}"))
        return True

    # --- the end

    async def prove_repaired(self) -> None:
        """The peer has gone: claims that should be over are, marks are worked off, nobody who is gone is named."""
        self.looked["R17"] += 1
        await self._until(self._stale_claims, _CLAIMS_END_SECONDS, ClaimOutlived)
        self.looked["R18"] += 1
        await self._until(self._marks_left, _REPAIRED_WITHIN_SECONDS, PeerIgnored)
        self.looked["R5"] += 1
        await self._until(self._unrepaired, _REPAIRED_WITHIN_SECONDS, NotRepaired)

    async def _until(self, left: Callable[[], list[str]], seconds: float, violation: type[InvariantViolated]) -> None:
        until = self._world.now + seconds
        while found := left():
            if self._world.now > until:
                raise violation("; ".join(found[:5]))
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def _stale_claims(self) -> list[str]:
        """Of bookies' earlier lives, of the peer, or of sessions that are over."""
        found = []
        claims = {f"the lock of ledger {number}": lock for number, lock in self._locks.items()}
        claims |= {f"vote {path.rpartition('/')[2]}": vote for path, vote in self._votes.items()}
        for what, claim in sorted(claims.items()):
            ended = self._ended.get(claim.owner.partition(":")[0], -1.0)
            if claim.session in self._peer.sessions or claim.since <= ended:
                found.append(f"{what} of {claim.owner} still stands, which has ended since")
        return found

    def _marks_left(self) -> list[str]:
        """Without those of ledgers of a bookie with damaged files: it may say of one that people have to mend it."""
        given_up = f"{self._paths.records(RecordKind.UNRECOVERABLE_LEDGER)}/"
        left = [number for number in sorted(self._marks) if not self._store.ensemble.tree.has(f"{given_up}{number}")]
        return [f"ledger {number} is marked still" for number in left if not self._is_at_a_damaged_one(number)]

    def _is_at_a_damaged_one(self, number: int) -> bool:
        record = self._store.ledgers.get(number)
        return record is not None and not self._damaged.isdisjoint(record.metadata.bookies)

    def _unrepaired(self) -> list[str]:
        tree, found = self._store.ensemble.tree, []
        given_up = f"{self._paths.records(RecordKind.UNRECOVERABLE_LEDGER)}/"
        for number, record in sorted(self._store.ledgers.items()):
            if tree.has(f"{given_up}{number}"):
                continue
            gone = sorted(each for each in record.metadata.bookies if not self._is_registered(each))
            if gone:
                found.append(f"ledger {number} ({record.metadata.state.name}) still names {', '.join(gone)}")
        return found

    def _is_registered(self, bookie_id: str) -> bool:
        tree, available = self._store.ensemble.tree, f"{self._paths.root}/available"
        return tree.has(f"{available}/{bookie_id}") or tree.has(f"{available}/readonly/{bookie_id}")

    def _fail(self, violation: InvariantViolated) -> None:
        self._world.fail(violation)


def _is_surplus(metadata: LedgerMetadata, bookie_id: str) -> bool:
    return metadata.state is LedgerState.CLOSED and bookie_id not in metadata.bookies


def _is_repair(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Whether members of fragments that were complete were replaced."""
    complete = before.complete_fragments
    return complete != after.fragments[: len(complete)]
