"""What operators do to auto-recovery, through the metadata alone: one rule for the commands and for HTTP admin.

Each function works on any store, in it or through gateways, also where the auditor and the workers are BookKeeper's;
only these do not know of bookies that are to be emptied. A bookie is emptied by a record that says so: the auditor
marks its ledgers and workers move them, whoever asked is gone or not. It is empty when no ledger's metadata name it,
which marks do not tell.

Ledgers are named by their numbers.

Not its job: what auditor and workers do (`bookie.replication`), how it is asked for and shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bookgate.ledger.bookie_info import check_bookie_id
from bookgate.ledger.errors import (
    IllegalOpException,
    IncorrectParameterException,
    MetadataVersionException,
    UnknownBookieException,
)
from bookgate.ledger.metadata_store import (
    BookieSet,
    LedgerManager,
    LedgerManagerFactory,
    LedgerRecord,
    RegisteredBookie,
    Versioned,
)
from bookgate.ledger.replication_store import ANY_VERSION, Mark, RecordKind, ReplicationMetadata

_CLUSTER_RATE = "replication_bytes_per_second"
_DELETE_COOKIE, _FORCE = "delete_cookie", "force"
"""What the record of a bookie that is to be emptied may ask for."""

# --- marks, the switch, audits ----------------------------------------------------------------------------------


async def marks_of(
    store: ReplicationMetadata, missing: str | None = None, not_missing: str | None = None
) -> AsyncGenerator[Sequence[Mark], None]:
    """Lists marks, in pages that may be empty: those that name the bookie `missing` and not the bookie `not_missing`.

    Raises what `ReplicationMetadata.marks` raises.
    """
    async for page in store.marks():
        yield [
            mark for mark in page if missing in (None, *mark.value.replicas) and not_missing not in mark.value.replicas
        ]


async def switch(store: ReplicationMetadata, enabled: bool) -> bool:
    """Switches auto-recovery on or off for the whole cluster. Returns False where it was so already."""
    try:
        await store.set_enabled(enabled)
    except IllegalOpException:
        if await store.is_enabled() is enabled:
            return False
        raise
    return True


async def obstacle(store: ReplicationMetadata) -> str | None:
    """Why nothing is marked and repaired in this cluster now, and what to do about it; None: nothing is in the way."""
    if not await store.is_enabled():
        return "auto-recovery is disabled; `bookgate autorecovery enable` switches it on"
    if await store.auditor() is None:
        return (
            "there is no auditor: auto-recovery does not run in this cluster; set auto_recovery = true at bookies, or "
            "run `bookgate autorecovery start`"
        )
    return None


async def cluster_rate(store: ReplicationMetadata) -> float:
    """Bytes a second that all workers together may read and store; 0: no bound. So too where it can't be read."""
    record = await store.read_record(RecordKind.SETTING, _CLUSTER_RATE)
    return float(record.value) if record is not None and record.value.isdigit() else 0.0


async def set_cluster_rate(store: ReplicationMetadata, bytes_a_second: int) -> None:
    """Sets what all workers together may read and store; 0: no bound. Workers hear of it within seconds."""
    if bytes_a_second <= 0:
        await store.remove_record(RecordKind.SETTING, _CLUSTER_RATE)
        return
    await store.write_record(RecordKind.SETTING, _CLUSTER_RATE, b"%d" % bytes_a_second, ANY_VERSION)


async def order_audit(store: ReplicationMetadata) -> str:
    """Makes the auditor look for lost bookies now, and returns at once with the auditor's bookie id.

    Raises IllegalOpException: Auto-recovery is disabled, or there is nobody to do it.
    """
    problem = await obstacle(store)
    if problem is not None:
        raise IllegalOpException(problem)
    auditor, seconds = await store.auditor(), await store.lost_bookie_delay()
    if auditor is None or seconds is None:
        raise IllegalOpException("the auditor has only just been elected; try again")
    # By writing the same value again, as BookKeeper's tools do.
    await store.set_lost_bookie_delay(seconds)
    return auditor


# --- whether it runs where nobody has said so -------------------------------------------------------------------

_DEFAULT_KEY, _ON = "auto_recovery", b"on"

SETTINGS_OF_NEW_CLUSTERS: Mapping[str, bytes] = MappingProxyType({_DEFAULT_KEY: _ON})
"""Records of `RecordKind.SETTING` with which a cluster begins: its bookies run auto-recovery unless their settings say
that they do not.
"""


async def is_default(store: ReplicationMetadata) -> bool:
    """Whether bookies whose settings do not say so run auto-recovery: Bookgate has made the cluster."""
    record = await store.read_record(RecordKind.SETTING, _DEFAULT_KEY)
    return record is not None and record.value == _ON


async def note_candidate(store: ReplicationMetadata, voter: str) -> None:
    """The votes in that name are cast by a process of Bookgate. One that no record can name is passed over."""
    with suppress(IncorrectParameterException):
        await store.write_record(RecordKind.CANDIDATE, voter, b"", ANY_VERSION)


async def foreign_auditor(store: ReplicationMetadata) -> str | None:
    """The auditor, if it is no process of Bookgate."""
    auditor = await store.auditor()
    return None if auditor is None or auditor in await store.records(RecordKind.CANDIDATE) else auditor


async def draining_obstacle(factory: LedgerManagerFactory, bookie_id: str) -> str | None:
    """Why nothing is moved from a bookie that is to be emptied, and what to do; None: nothing is in the way."""
    problem, auditor = await obstacle(factory.replication_metadata), await foreign_auditor(factory.replication_metadata)
    if problem is not None or auditor is None:
        return problem
    found = await find_bookie(factory, bookie_id)
    if found is None or not found.registered:
        return None  # it is lost, for any auditor
    return (
        f"the auditor, {auditor}, is none of Bookgate's, or of an older version: it does not know of bookies that are "
        f"to be emptied; `bookgate bookie recover {bookie_id}` moves their ledgers from where it is run"
    )


# --- bookies that are to be emptied -----------------------------------------------------------------------------


def time_of(record: bytes) -> int:
    """When the record of a bookie to be emptied, or of an unrecoverable ledger, was made; 0 where it does not tell."""
    try:
        return int(json.loads(record)["time_ms"])
    except (ValueError, TypeError, KeyError):
        return 0


def lost_bookies_of(record: bytes) -> Sequence[str]:
    """The bookies that were lost when a ledger was found unrecoverable, from its record."""
    try:
        return list(json.loads(record)["lost_bookies"])
    except (ValueError, TypeError, KeyError):
        return []


def given_up_with(record: bytes) -> Mapping[str, int]:
    """With which bookies an unrecoverable ledger was given up, and when in milliseconds since 1970, by its record."""
    try:
        return {str(bookie_id): int(time_ms) for bookie_id, time_ms in json.loads(record)["given_up_with"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a ledger can't be repaired, as far as its record tells."""

    entries: int
    """Entries of which no copy is left."""
    first_entries: Sequence[int]
    """The first of them."""
    end_is_lost: bool
    """Whether nobody can tell where the ledger ends."""
    lost_bookies: Sequence[str]
    time_ms: int
    """When it was found, in milliseconds since 1970; 0: unknown."""
    given_up_with: Sequence[str] = ()
    """Bookies that were decommissioned although they may have had copies."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By bookie what it said of its copies, in words; empty in records of before."""

    @property
    def facts(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "entries": self.entries,
            "first_entries": list(self.first_entries),
            "end_is_lost": self.end_is_lost,
            "lost_bookies": list(self.lost_bookies),
            "given_up_with": list(self.given_up_with),
            "answers": dict(self.answers),
            "found_ms": self.time_ms or None,
        }

    def __str__(self) -> str:
        some = ", ".join(map(str, self.first_entries[:5]))
        gone = f"no copy of {self.entries} entries ({some}{', …' if self.entries > 5 else ''})" if self.entries else ""
        end = "nobody can tell where it ends" if self.end_is_lost else ""
        answers = ", ".join(f"{name}: {answer}" for name, answer in self.answers.items())
        return "; ".join(each for each in (gone, end, answers) if each)


def loss_of(record: bytes) -> Loss:
    """What the record of an unrecoverable ledger tells; nothing where it can't be read."""
    known = _object_in(record)
    entries, first, answers = known.get("entries"), known.get("first_entries"), known.get("answers")
    return Loss(
        entries if isinstance(entries, int) else 0,
        first if isinstance(first, list) else (),
        known.get("end_is_lost") is True,
        lost_bookies_of(record),
        time_of(record),
        sorted(given_up_with(record)),
        {str(name): str(answer) for name, answer in answers.items()} if isinstance(answers, dict) else {},
    )


def _object_in(record: bytes) -> dict[str, Any]:
    try:
        told = json.loads(record)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def losses_in(records: Mapping[str, Versioned[bytes]], most: int) -> list[tuple[int, Loss]]:
    """The first of the ledgers that can't be repaired, by their records, and why."""
    first = sorted(int(key) for key in records if key.isdigit())[:most]
    return [(ledger_id, loss_of(records[str(ledger_id)].value)) for ledger_id in first]


def corrupt_copies_of(record: bytes) -> dict[str, list[tuple[int, int]]]:
    """Which copies of a ledger a scrub found damaged: by bookie id, first and last entry ids of ranges.

    Empty where the record can't be read. Source: docs/protocol/auto-recovery.md#scrub.
    """
    try:
        told = json.loads(record)["copies"].items()
        return {
            str(bookie_id): [(int(first), int(last)) for first, last in ranges if 0 <= int(first) <= int(last)]
            for bookie_id, ranges in told
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}


async def find_bookie(factory: LedgerManagerFactory, bookie_id: str) -> RegisteredBookie | None:
    """The bookie, if it has a cookie or is registered. Raises IncorrectParameterException for what is no id."""
    check_bookie_id(bookie_id)
    found = await factory.service_discovery.bookies(BookieSet.ALL)
    return next((each for each in found if each.bookie_id == bookie_id), None)


async def begin_draining(
    factory: LedgerManagerFactory, bookie_id: str, now_ms: int, *, delete_cookie: bool = False, force: bool = False
) -> bool:
    """Has a bookie emptied, whether it runs or not: the auditor takes notice of the record by itself.

    Args:
        factory: The metadata.
        bookie_id: The bookie.
        now_ms: The time, in milliseconds since 1970.
        delete_cookie: The auditor is to delete the cookie once the bookie is empty and stopped.
        force: Ledgers that can't leave it, since entries have no copy left, are no obstacle to that: see
            `remove_emptied`.

    Returns:
        False if that had been asked for already.

    Raises:
        IncorrectParameterException: The id is none.
        UnknownBookieException: Nothing in the cluster has it: no cookie, no registration, no ledger.
        IllegalOpException: The store has no place for auto-recovery.
    """
    store = factory.replication_metadata
    await require_known(factory, bookie_id)
    flags = {flag for flag, wanted in ((_DELETE_COOKIE, delete_cookie), (_FORCE, force)) if wanted}
    while True:
        found = await store.read_record(RecordKind.DRAINING_BOOKIE, bookie_id)
        before = set() if found is None else _flags_of(found.value)
        if found is not None and flags <= before:
            return False
        time_ms = now_ms if found is None else time_of(found.value)
        wanted = {"time_ms": time_ms, **dict.fromkeys(sorted(flags | before), True)}
        try:
            version = None if found is None else found.version
            await store.write_record(RecordKind.DRAINING_BOOKIE, bookie_id, json.dumps(wanted).encode(), version)
        except MetadataVersionException:
            continue
        return True


def _flags_of(record: bytes) -> set[str]:
    told = _object_in(record)
    return {flag for flag in (_DELETE_COOKIE, _FORCE) if told.get(flag) is True}


async def cookies_to_delete(store: ReplicationMetadata) -> dict[str, bool]:
    """Bookies whose cookies the auditor is to delete once they are empty and stopped.

    True for those of which ledgers that can't be moved are given up (`begin_draining` with `force`).
    """
    records = await store.records(RecordKind.DRAINING_BOOKIE)
    flags = {bookie_id: _flags_of(record.value) for bookie_id, record in records.items()}
    return {bookie_id: _FORCE in told for bookie_id, told in flags.items() if _DELETE_COOKIE in told}


async def unrecoverable_at(store: ReplicationMetadata, bookie_id: str) -> set[int]:
    """Ledgers that were tried since the bookie is away or to be emptied, and have entries of which no copy is left."""
    since_ms = await draining_since(store, bookie_id)
    return {
        int(key)
        for key, reason in (await store.records(RecordKind.UNRECOVERABLE_LEDGER)).items()
        if key.isdigit()
        and (bookie_id in lost_bookies_of(reason.value) or (since_ms is not None and time_of(reason.value) >= since_ms))
    }


async def draining_since(store: ReplicationMetadata, bookie_id: str) -> int | None:
    """When it was asked for that the bookie be emptied, in milliseconds since 1970; None: it is not to be."""
    record = await store.read_record(RecordKind.DRAINING_BOOKIE, bookie_id)
    return None if record is None else time_of(record.value)


async def draining_bookies(store: ReplicationMetadata) -> dict[str, int]:
    """Bookies that are to be emptied, and when that was asked for, in milliseconds since 1970; 0: unknown."""
    records = await store.records(RecordKind.DRAINING_BOOKIE)
    return {bookie_id: time_of(record.value) for bookie_id, record in records.items()}


async def end_draining(store: ReplicationMetadata, bookie_id: str) -> bool:
    """A bookie is not to be emptied any more; what was moved stays where it is. Returns False if it was not to be."""
    if await draining_since(store, check_bookie_id(bookie_id)) is None:
        return False
    await store.remove_record(RecordKind.DRAINING_BOOKIE, bookie_id)
    return True


async def ledgers_naming(manager: LedgerManager, bookie_id: str) -> AsyncGenerator[list[LedgerRecord], None]:
    """Lists all ledgers, of every scope, of which any ensemble names the bookie, in pages that may be empty.

    Raises BKException: The listing can't be completed, or a ledger not be read.
    """
    async for page in records_of_all_scopes(manager):
        yield [record for record in page if bookie_id in record.metadata.bookies]


async def records_of_all_scopes(manager: LedgerManager) -> AsyncGenerator[Sequence[LedgerRecord], None]:
    """Lists all ledgers, page by page. Raises BKException: The listing can't be completed, or a ledger not be read."""
    manager.demand_complete_listings()
    async for page in manager.ledger_records():
        yield page
    async for run in manager.scopes():
        for scope_id in run:
            async for page in manager.ledger_records(scope_id):
                yield page


async def require_known(factory: LedgerManagerFactory, bookie_id: str) -> None:
    """Raises UnknownBookieException unless the bookie has a cookie, is registered or to be emptied, or a ledger names
    it."""
    if await find_bookie(factory, bookie_id) is not None:
        return
    if await draining_since(factory.replication_metadata, bookie_id) is not None:
        return
    async for page in ledgers_naming(factory.ledger_manager, bookie_id):
        if page:
            return
    raise UnknownBookieException(
        f"there is no bookie {bookie_id}: it has no cookie, is not registered, and no ledger names it; "
        "`bookgate bookie list` shows all"
    )


async def require_unregistered(factory: LedgerManagerFactory, bookie_id: str, purpose: str) -> None:
    """Raises IllegalOpException while a bookie is registered: it has to be stopped before `purpose`."""
    found = await find_bookie(factory, bookie_id)
    if found is not None and found.registered:
        mode = "writable" if found.writable else "read-only"
        raise IllegalOpException(f"bookie {bookie_id} is registered ({mode}): stop it before {purpose}")


async def remove_emptied(
    factory: LedgerManagerFactory, bookie_id: str, given_up: Collection[int] = (), now_ms: int = 0
) -> bool:
    """Removes the cookie of a bookie that no ledger names any more, then the record that it is to be emptied.

    Args:
        factory: The metadata.
        bookie_id: The bookie.
        given_up: Unrecoverable ledgers that name it and stay as they are: their records tell that from now on.
        now_ms: The time, in milliseconds since 1970.

    Returns:
        Whether it had a cookie.

    Raises:
        IllegalOpException: The bookie is registered again.
        MetadataVersionException: Its cookie was written just now.
    """
    await require_unregistered(factory, bookie_id, "its cookie goes")
    await _give_up(factory.replication_metadata, bookie_id, given_up, now_ms)
    manager = factory.registration_manager
    cookie = await manager.read_cookie(bookie_id)
    if cookie is not None:
        await manager.remove_cookie(bookie_id, cookie.version)
    await end_draining(factory.replication_metadata, bookie_id)
    return cookie is not None


async def _give_up(store: ReplicationMetadata, bookie_id: str, ledgers: Iterable[int], now_ms: int) -> None:
    for ledger_id in ledgers:
        while True:
            found = await store.read_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id))
            if found is None:
                break  # it was healed or deleted meanwhile
            told = {**_object_in(found.value), "given_up_with": {**given_up_with(found.value), bookie_id: now_ms}}
            content = json.dumps(told, sort_keys=True).encode()
            try:
                await store.write_record(RecordKind.UNRECOVERABLE_LEDGER, str(ledger_id), content, found.version)
            except MetadataVersionException:
                continue
            break
