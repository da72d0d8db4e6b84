"""When a ledger leaves limbo: once it is certain what the bookie has to hold of it, and that it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bookgate.bookie.limbo.check import LimboCheck, all_ledgers
from bookgate.bookie.limbo.placed_entries import placed_entries
from bookgate.bookie.storage.closed_before import closed_before
from bookgate.bookie.system.files import REAL_FILE_SYSTEM
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry, encode_header
from bookgate.ledger.errors import (
    BKException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
    WriteException,
    WrongClusterException,
)
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord, Membership
from bookgate.ledger.password_check import PasswordCheck
from tests.unit.bookie.storage.storage_support import OpenStorage, opened

MEMBERSHIP = Membership("a:1", "own")
WAIT_SECONDS = 60.0
BOOKIES = ("a:1", "b:1", "c:1", "d:1")


def metadata(state: LedgerState, last: int, *fragments: tuple[int, str], quorum: int = 2) -> LedgerMetadata:
    """Fragments as first entry and initials of the ensemble."""
    made = [Fragment(first, tuple(f"{initial}:1" for initial in ensemble)) for first, ensemble in fragments]
    return LedgerMetadata(len(made[0].ensemble), quorum, quorum, tuple(made), state, last, max(0, last + 1) * 10)


@pytest.mark.parametrize("quorum", [1, 2, 3])
@pytest.mark.parametrize("fragments", [[(0, "abc")], [(0, "bca"), (5, "bda"), (6, "cba"), (16, "abd")]])
def test_the_entries_placed_on_a_bookie(quorum: int, fragments: list[tuple[int, str]]) -> None:
    closed = metadata(LedgerState.CLOSED, 20, *fragments, quorum=quorum)
    for bookie in BOOKIES:
        wanted = []
        for entry_id in range(21):
            ensemble = closed.fragment_at(entry_id).ensemble
            if bookie in [ensemble[(entry_id + index) % 3] for index in range(quorum)]:
                wanted.append(entry_id)
        assert sorted(entry_id for ids in placed_entries(closed, bookie) for entry_id in ids) == wanted


class Store:
    """The part of a metadata store that is asked."""

    def __init__(self, ledgers: dict[int, LedgerMetadata | BKException]) -> None:
        self.ledgers = ledgers
        self.instance_id = "own"
        self.scope_ids: list[int] = []
        self.marks: list[tuple[int, Sequence[str]]] = []
        self.enabled = True
        self.refusal: BKException | None = None
        self.ledger_manager = self.registration_manager = self.replication_metadata = self

    async def is_enabled(self) -> bool:
        return self.enabled

    async def auditor(self) -> str:
        return "b:1"

    async def mark(self, ledger_id: int, replicas: Sequence[str], ctime_ms: int | None) -> None:
        assert ctime_ms is not None
        if self.refusal is not None:
            raise self.refusal
        self.marks.append((ledger_id, replicas))

    async def verify(self, membership: Membership) -> None:
        membership.check(self.instance_id, b"cookie")

    async def catch_up(self, revision: int | None) -> None:
        assert revision is None

    async def read_many(self, ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        found = [(each, self.ledgers.get(each.low)) for each in ids]
        return [
            LedgerRecord(each, known, 1)
            if isinstance(known, LedgerMetadata)
            else known or NoSuchLedgerExistsOnMetadataServerException(str(each))
            for each, known in found
        ]

    def demand_complete_listings(self) -> None:
        self.demanded = True

    async def ledger_ranges(self, scope_id: int = 0) -> AsyncIterator[Sequence[int]]:
        assert self.demanded, "it concludes from what is not listed"
        ids = sorted(self.ledgers) if scope_id == 0 else [3]
        yield ids[:2]
        yield ids[2:]

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        for scope in self.scope_ids:
            if unsigned(scope) > unsigned(start_after):
                yield [scope]


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


class Checked:
    """A check with a clock of its own, over a store."""

    def __init__(self, bookie: OpenStorage, store: Store) -> None:
        self.now = 0.0
        self.fenced: dict[int, bytes] = {}
        self.no_space_for: set[int] = set()
        self._bookie = bookie
        self._check = LimboCheck(
            bookie.storage,
            cast(LedgerManagerFactory, store),
            MEMBERSHIP,
            WAIT_SECONDS,
            0,
            lambda: self.now,
            at_once,
            self._fence,
        )

    async def _fence(self, ledger_id: LedgerId, master_key: bytes) -> None:
        if ledger_id.number in self.no_space_for:
            raise WriteException(f"ledger {ledger_id} is not fenced: there is no space")
        self.fenced[ledger_id.number] = master_key
        self._bookie.storage.ledgers.get_or_create(ledger_id, master_key)

    def after(self, seconds: float) -> None:
        self.now += seconds
        asyncio.run(self._check.verify())

    def let_begin_again(self) -> None:
        asyncio.run(self._check.let_begin_again())


def listed(store: Store) -> list[int]:
    return asyncio.run(all_ledgers(cast(LedgerManagerFactory, store), MEMBERSHIP))


def test_a_loss_concerns_the_ledgers_of_every_scope() -> None:
    store = Store({1: BKException(), 2: BKException()})
    store.scope_ids = [1, -1]
    assert listed(store) == [1, 2, LedgerId(1, 3).number, LedgerId(-1, 3).number]


def test_what_leaves_and_what_stays(tmp_path: Path) -> None:
    closed = LedgerState.CLOSED
    store = Store(
        {
            1: metadata(closed, 2, (0, "abc"), quorum=3),
            2: metadata(closed, 2, (0, "abc"), quorum=3),  # entry 2 is missing here
            3: metadata(closed, 5, (0, "bcd"), quorum=3),  # elsewhere
            4: metadata(closed, -1, (0, "abc"), quorum=3),
            5: metadata(LedgerState.OPEN, -1, (0, "abc"), quorum=3),
            6: metadata(LedgerState.IN_RECOVERY, -1, (0, "abc"), quorum=3),
            7: MetaStoreException("out of reach"),
            8: metadata(closed, 2, (0, "abc"), quorum=3),  # of which nothing is left
        }
    )
    with opened(tmp_path) as bookie:
        for number in (1, 2):
            bookie.ledger(number, ledger_master_key(b""))
        bookie.add(1, 0, 1, 2)
        bookie.add(2, 0, 1)
        bookie.storage.limbo_marks.add([*listed(store), 9])
        check = Checked(bookie, store)
        check.after(0)
        assert bookie.storage.limbo() == [2, 5, 6, 7, 8, 9]
        bookie.add(2, 2)
        check.after(WAIT_SECONDS)
        assert bookie.storage.limbo() == [5, 6, 7, 8]


def test_an_id_that_is_an_open_ledgers_again_was_not_closed_before(tmp_path: Path) -> None:
    """Only those that somebody asked for are looked up."""
    closed, open_again = metadata(LedgerState.CLOSED, 2, (0, "bcd")), metadata(LedgerState.OPEN, -1, (0, "abc"))
    store = Store({1: closed, 2: open_again, 3: open_again, 4: MetaStoreException("out of reach")})
    directory = tmp_path / "ledgers"
    directory.mkdir()
    closed_before(REAL_FILE_SYSTEM, [directory]).replace(LedgerNumbers([1, 2, 3, 4, 5]))
    with opened(tmp_path) as bookie:
        check = Checked(bookie, store)
        assert all(bookie.storage.may_have_held(number) for number in (1, 2, 4, 5))
        check.let_begin_again()
        assert [number for number in range(1, 6) if bookie.storage.may_have_held(number)] == [1, 3, 4, 5]
        check.let_begin_again()
    with opened(tmp_path) as bookie:
        assert [number for number in range(1, 6) if bookie.storage.may_have_held(number)] == [1, 4, 5]


def test_a_fence_without_space_does_not_keep_others_from_leaving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = metadata(LedgerState.CLOSED, -1, (0, "abc"), quorum=3)
    store = Store({1: empty, 2: empty, 3: replace(empty, password=None, digest_type=None)})
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add(listed(store))
        check = Checked(bookie, store)
        check.no_space_for.add(1)
        check.after(0)
        assert bookie.storage.limbo() == [1, 3]
        check.no_space_for.clear()
        check.after(0)
        assert bookie.storage.limbo() == [3]
    assert store.marks == []
    assert caplog.text.count("ledger 1 is not fenced") == 1
    assert caplog.text.count("its password is not known") == 1, "said once"


def test_what_leaves_is_fenced_if_it_names_the_bookie(tmp_path: Path) -> None:
    """R9: a fence may be among what was lost, also of a ledger of which nothing was here."""
    closed = LedgerState.CLOSED
    empty = metadata(closed, -1, (0, "abc"), quorum=3)
    password = replace(empty, password=b"secret")
    withheld = replace(password, password=b"", password_check=PasswordCheck(b"salt", b"hash"))
    store = Store(
        {
            1: metadata(closed, 0, (0, "abc"), quorum=3),  # its key is here
            2: password,
            3: replace(empty, password=None, digest_type=None),  # nobody knows its key
            4: withheld,
            5: metadata(closed, -1, (0, "bcd"), quorum=3),
        }
    )
    with opened(tmp_path) as bookie:
        bookie.ledger(1, ledger_master_key(b""))
        bookie.add(1, 0)
        bookie.storage.limbo_marks.add(listed(store))
        check = Checked(bookie, store)
        check.after(0)
        assert bookie.storage.limbo() == [3, 4]
        assert check.fenced.keys() == {1, 2}
        assert check.fenced[2] == ledger_master_key(b"secret")


def test_what_leaves_takes_no_adds_if_it_was_moved_away(tmp_path: Path) -> None:
    """R9: its writer may still have the bookie in its ensemble, and a fence may be among what was lost."""
    moved = metadata(LedgerState.CLOSED, 2, (0, "bcd"), quorum=3)
    store = Store({1: moved, 2: moved})
    with opened(tmp_path) as bookie:
        bookie.ledger(1, ledger_master_key(b""))
        bookie.add(1, 0)
        bookie.storage.limbo_marks.add([*listed(store), 3])
        check = Checked(bookie, store)
        check.after(0)
        check.after(WAIT_SECONDS)
        assert bookie.storage.limbo() == []
        assert bookie.storage.may_have_held(2), "nothing of it is here, so no writer begins it here"
        assert not bookie.storage.may_have_held(3), "a deleted ledger has no writer that is owed a refusal"
    with opened(tmp_path) as bookie:
        kept = bookie.storage.ledgers.get(LedgerId.unscoped(1))
        assert kept is not None
        assert kept.fenced
        assert bookie.storage.may_have_held(2)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_the_key_that_the_metadata_bear_out_counts(
    tmp_path: Path, state: LedgerState, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger was the first at a bookie that had lost the ledgers: with a fence, or with copies of its own."""
    closed = state is LedgerState.CLOSED
    known = replace(metadata(LedgerState.CLOSED, 1, (0, "abc"), quorum=3), password=b"secret")
    if not closed:
        known = replace(known, state=state, last_entry_id=-1, length=0)
    own = digest_for(DigestType.CRC32C, b"secret")
    stored = {2: encode_entry(own, 2, 0, -1, 1, b"x"), 3: encode_entry(own, 2, 0, -1, 1, b"x")}
    stored[3] = encode_header(4, 3, 0, -1, 1) + stored[3][len(stored[3]) - 5 :]  # of another ledger
    withheld = replace(known, password=b"", password_check=PasswordCheck(b"salt", b"hash"))
    store = Store({1: known, 2: known, 3: known, 4: known, 5: withheld})
    stranger, right = b"s" * 20, ledger_master_key(b"secret")
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add(listed(store))
        for number in (1, 2, 3, 5):
            bookie.ledger(number, stranger)
            bookie.fence(number)
        bookie.ledger(4, right)
        bookie.fence(4)
        for number, entry in stored.items():
            bookie.writer.add_entry(bookie.ledger(number), 0, entry, number)
        bookie.acks.wait_for(*stored)
        check = Checked(bookie, store)
        for _ in range(2):
            check.after(0)
        found = {number: bookie.ledger(number) for number in store.ledgers}
        assert {number for number, ledger in found.items() if ledger.master_key == right} == {1, 3, 4}
        assert check.fenced == {1: right, 3: right}
        assert all(ledger.fenced and ledger.limbo for ledger in found.values())
        held = {number: list(bookie.storage.reader.entry_ids(ledger)) for number, ledger in found.items()}
        assert held == {1: [], 2: [(0, 1)], 3: [], 4: [], 5: []}
        assert store.marks == ([(number, ["a:1"]) for number in store.ledgers] if closed else [])
    assert caplog.text.count("another master key than its password") == 1, "of ledger 2, once"
    with opened(tmp_path) as again:
        assert again.ledger(1).master_key != stranger


def test_what_is_missing_is_marked_once(tmp_path: Path) -> None:
    """Where somebody takes heed of it."""
    store = Store(
        {1: metadata(LedgerState.CLOSED, 2, (0, "abc"), quorum=3), 2: metadata(LedgerState.OPEN, -1, (0, "abc"))}
    )
    store.enabled = False
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add([*listed(store), LedgerId(7, 1).number])
        check = Checked(bookie, store)
        check.after(0)
        assert store.marks == []
        store.enabled = True
        check.after(0)
        check.after(0)
        scoped = LedgerId(7, 1).number
        assert store.marks == [(1, ["a:1"]), (scoped, ["a:1"])], "by its whole id"


def test_a_bookie_that_may_not_mark_goes_on(tmp_path: Path) -> None:
    lacking = metadata(LedgerState.CLOSED, 2, (0, "abc"), quorum=3)
    store = Store({1: lacking, 2: lacking, 3: metadata(LedgerState.CLOSED, 2, (0, "bcd"), quorum=3)})
    store.refusal = UnauthorizedAccessException("it may not")
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add(listed(store))
        check = Checked(bookie, store)
        check.after(0)
        assert bookie.storage.limbo() == [1, 2]
        store.refusal = None
        check.after(0)
        assert [ledger_id for ledger_id, _ in store.marks] == [1, 2]


def test_what_an_older_store_lacks_for_a_while_stays(tmp_path: Path) -> None:
    closed = metadata(LedgerState.CLOSED, 2, (0, "abc"), quorum=3)
    store = Store({1: closed})
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add([1])
        check = Checked(bookie, store)
        for there in ({}, {1: closed}, {}, {1: closed}):
            store.ledgers = dict(there)
            check.after(WAIT_SECONDS)
        assert bookie.storage.limbo() == [1]
        store.ledgers = {}
        check.after(WAIT_SECONDS)
        check.after(WAIT_SECONDS / 2)
        assert bookie.storage.limbo() == [1]
        check.after(WAIT_SECONDS / 2)
        assert bookie.storage.limbo() == []


def test_the_metadata_of_another_cluster_do_not_count(tmp_path: Path) -> None:
    """They once emptied the list: what was lost was answered "no such ledger" afterwards."""
    elsewhere = metadata(LedgerState.CLOSED, 2, (0, "bcd"), quorum=3)
    store = Store({1: elsewhere})
    store.instance_id = "another"
    with opened(tmp_path) as bookie:
        bookie.storage.limbo_marks.add([1, 2])
        check = Checked(bookie, store)
        for _ in range(3):
            with pytest.raises(WrongClusterException):
                check.after(WAIT_SECONDS)
        assert bookie.storage.limbo() == [1, 2]
    with pytest.raises(WrongClusterException):
        listed(store)
