"""What one audit marks, by listings and by the index, and which audits an operator's order or a switch causes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from bookgate.bookie.replication.audits import auditor as auditor_module
from bookgate.bookie.replication.audits.audit import Audits, AuditStatistics
from bookgate.bookie.replication.audits.auditor import Auditor, AuditorOptions, RollCalled
from bookgate.bookie.replication.audits.index_keeper import IndexKeeper, IndexOptions, IndexStatistics
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import MetaStoreException, UnknownOutcomeException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import BookieSet, LedgerManagerFactory, RegisteredBookie
from bookgate.ledger.replication_control import order_audit
from bookgate.ledger.replication_store import RecordKind, VoteListener, VoteState
from bookgate.runtime.auditor_votes import Vote
from tests.integration.bookie.replication.healing import until
from tests.integration.bookie.replication.test_auditor_metrics import register
from tests.stores import made

pytestmark = pytest.mark.asyncio

LEDGERS = (("back", "other"), ("emptied", "other"), ("gone", "back"), ("emptied", "back"))


@pytest.mark.parametrize("indexed", [False, True])
async def test_a_bookie_that_came_back_during_the_scan_is_not_marked_for(tmp_path: Path, indexed: bool) -> None:
    factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await factory.initialize()
    index = IndexKeeper(factory, None, IndexOptions(), IndexStatistics())
    try:
        for number, names in enumerate(LEDGERS):
            await factory.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(names, 2, 1))
        await register(factory, "back", "emptied", "other")
        if indexed:
            index.start()
            async with asyncio.timeout(30):
                while await index.naming(frozenset()) is None:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.01)
        audits = Audits(factory, None, index, AuditStatistics(), lambda: None)
        await audits.of(["back", "emptied", "gone"], emptied=["emptied"])
        found = [mark.value async for page in factory.replication_metadata.marks() for mark in page]
        marked = {mark.ledger_id: tuple(mark.replicas) for mark in found}
        assert marked == {1: ("emptied",), 2: ("gone",), 3: ("emptied",)}
    finally:
        index.stop()
        await index.ended()
        await factory.close()


BOOKIES = ("a", "b", "c", "d", "e")


@contextlib.asynccontextmanager
async def stores(root: Path, count: int) -> AsyncIterator[list[LedgerManagerFactory]]:
    """Several processes' access to one store, with a cluster of five bookies."""
    factories = [create_factory(made(f"sqlite://{root}/metadata.db")) for _ in range(count)]
    for factory in factories:
        await factory.initialize()
    try:
        await register(factories[0], *BOOKIES)
        yield factories
    finally:
        for factory in factories:
            await factory.close()


async def three_leave(factory: LedgerManagerFactory) -> None:
    """At once, which is a storm."""
    for name in BOOKIES[2:]:
        await factory.registration_manager.unregister_bookie(name)


async def until_roll(auditor: Auditor) -> RollCalled:
    async def is_called() -> bool:
        return auditor.statistics.roll is not None

    await until(is_called)
    assert auditor.statistics.roll is not None
    return auditor.statistics.roll


async def test_an_order_that_a_candidate_heard_long_ago_is_not_for_its_own_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(tmp_path, 2) as (here, there):
        first, second = (
            Auditor(factory, name, AuditorOptions(lost_bookie_delay_seconds=3600))
            for factory, name in ((here, "first"), (there, "second"))
        )
        await first.start()
        await until_roll(first)
        await second.start()

        async def both_know_the_delay() -> bool:
            return first._delay_told and second._delay_told

        async def is_ordered() -> bool:
            return second._ordered_at is not None

        await until(both_know_the_delay)
        await order_audit(here.replication_metadata)
        await until(is_ordered)
        now, later = asyncio.get_running_loop().time, 3600.0
        monkeypatch.setattr(Auditor, "_now", staticmethod(lambda: now() + later))
        await three_leave(here)
        await first.stop()
        roll = await until_roll(second)
        assert (roll.missed, roll.lost) == (3, 0)
        await second.stop()


async def test_an_order_that_was_given_a_moment_before_the_election_counts(tmp_path: Path) -> None:
    async with stores(tmp_path, 1) as (here,):
        auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=3600))
        auditor._ordered_at = asyncio.get_running_loop().time()
        await three_leave(here)
        await auditor.start()
        assert (await until_roll(auditor)).lost == 3
        await auditor.stop()


async def test_an_order_that_is_interrupted_by_disabling_is_carried_out_when_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm, in which nothing is marked without an order."""
    async with stores(tmp_path, 1) as (here,):
        await three_leave(here)
        kept, count = here.replication_metadata, 80
        for number in range(count):
            names = ("a", "b", BOOKIES[2 + number % 3])
            await here.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(names, 3, 2))
        auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=0, roll_call_seconds=0.2))
        mark, called, disabled = kept.mark, list[int](), asyncio.Event()

        async def is_disabled() -> bool:
            return not auditor.statistics.enabled

        async def disabling(ledger_id: int, bookie_ids: Sequence[str], at_ms: int) -> None:
            called.append(ledger_id)
            if len(called) == 1:
                await kept.set_enabled(False)
                await until(is_disabled)
                disabled.set()
            await disabled.wait()
            await mark(ledger_id, bookie_ids, at_ms)

        async def all_are_marked() -> bool:
            return len([each async for page in kept.marks() for each in page]) == count

        await auditor.start()
        assert (await until_roll(auditor)).storm
        monkeypatch.setattr(kept, "mark", disabling)
        await order_audit(kept)
        await asyncio.wait_for(disabled.wait(), 30)
        monkeypatch.setattr(kept, "mark", mark)
        assert not await all_are_marked()
        await kept.set_enabled(True)
        await until(all_are_marked)
        await auditor.stop()


@pytest.mark.parametrize(
    ("disabled", "expired"), [(False, False), (True, False), (False, True)], ids=["enabled", "disabled", "expired"]
)
async def test_an_order_outlasts_a_store_that_fails_for_longer_than_a_roll_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: bool, expired: bool
) -> None:
    """R11: in a storm, where nothing is marked without the order. Nobody else is the auditor meanwhile."""
    monkeypatch.setattr(auditor_module, "_STORE_PAUSE_SECONDS", 0.01)
    async with stores(tmp_path, 1) as (here,):
        await three_leave(here)
        for number, name in enumerate(BOOKIES[2:]):
            await here.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(("a", "b", name), 3, 2))
        kept, discovery, clock = here.replication_metadata, here.service_discovery, asyncio.get_running_loop().time
        auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=0))
        await auditor.start()
        assert (await until_roll(auditor)).storm
        failures, real = list[float](), discovery.bookies

        async def failing(which: BookieSet) -> Sequence[RegisteredBookie]:
            failures.append(clock())
            raise MetaStoreException("the store does not answer")

        async def is_ordered() -> bool:
            return auditor._ordered_at is not None and auditor.statistics.enabled is not disabled

        async def fails_again() -> bool:
            return len(failures) > before + 2

        async def all_are_marked() -> bool:
            return len([each async for page in kept.marks() for each in page]) == 3

        if disabled:
            await kept.set_enabled(False)
        monkeypatch.setattr(discovery, "bookies", failing)
        await kept.set_lost_bookie_delay(0)  # the same as before: an order of BookKeeper's tools
        await until(is_ordered)
        # Longer than the time between two roll calls.
        monkeypatch.setattr(Auditor, "_now", staticmethod(lambda: clock() + 3600))
        before = len(failures)
        auditor._news.set()
        await until(fails_again)
        assert auditor.statistics.is_auditor
        if expired:
            assert auditor._vote is not None
            await auditor._vote.withdraw()
            auditor._on_vote(VoteState.LOST)
        monkeypatch.setattr(discovery, "bookies", real)
        if disabled:
            await kept.set_enabled(True)
        async with asyncio.timeout(30):
            await until(all_are_marked)
        await auditor.stop()


@pytest.mark.parametrize("fails", [True, False], ids=["store-fails", "office-is-lost"])
async def test_an_order_outlasts_the_loss_of_the_vote_during_its_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """R11: a session that expires. The same process is elected again, and the audit has taken long."""
    monkeypatch.setattr(auditor_module, "_STORE_PAUSE_SECONDS", 0.01)
    async with stores(tmp_path, 1) as (here,):
        await three_leave(here)
        for number in range(80):
            names = ("a", "b", BOOKIES[2 + number % 3])
            await here.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(names, 3, 2))
        kept, clock = here.replication_metadata, asyncio.get_running_loop().time
        auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=0))
        await auditor.start()
        assert (await until_roll(auditor)).storm
        mark, began, goes_on = kept.mark, asyncio.Event(), asyncio.Event()

        async def waiting(ledger_id: int, bookie_ids: Sequence[str], at_ms: int) -> None:
            began.set()
            await goes_on.wait()
            if fails:
                raise MetaStoreException("the session is over")
            await mark(ledger_id, bookie_ids, at_ms)

        async def all_are_marked() -> bool:
            return len([each async for page in kept.marks() for each in page]) == 80

        monkeypatch.setattr(kept, "mark", waiting)
        await order_audit(kept)
        async with asyncio.timeout(30):
            await began.wait()
        monkeypatch.setattr(Auditor, "_now", staticmethod(lambda: clock() + 3600))
        assert auditor._vote is not None
        await auditor._vote.withdraw()
        auditor._on_vote(VoteState.LOST)
        monkeypatch.setattr(kept, "mark", mark)
        goes_on.set()
        async with asyncio.timeout(30):
            await until(all_are_marked)
        await auditor.stop()


async def test_who_is_missed_and_who_is_back_is_recorded_while_disabled(tmp_path: Path) -> None:
    """R13: otherwise a bookie that served all the time since would be lost at once when it is away the next time."""
    async with stores(tmp_path, 2) as (here, clients):
        kept = clients.replication_metadata
        await here.ledger_manager.create(LedgerId.unscoped(7), LedgerMetadata.new(("b", "c"), 2, 1))
        auditor = Auditor(here, "here", AuditorOptions(lost_bookie_delay_seconds=0))
        await auditor.start()
        await until_roll(auditor)
        await kept.set_enabled(False)

        async def is_disabled() -> bool:
            return not auditor.statistics.enabled

        async def one_is_missed() -> bool:
            return list(await kept.records(RecordKind.MISSED_BOOKIE)) == ["c"]

        async def nobody_is_missed() -> bool:
            return not await kept.records(RecordKind.MISSED_BOOKIE)

        await until(is_disabled)
        await here.registration_manager.unregister_bookie("c")
        await until(one_is_missed)
        await here.registration_manager.register_bookie(BookieServiceInfo("c", ()), read_only=False)
        await until(nobody_is_missed)
        assert [page async for page in kept.marks()] in ([], [[]])
        assert auditor.statistics.audits == 0
        await auditor.stop()


async def test_a_ledger_of_bookies_that_never_were_makes_no_storm(tmp_path: Path) -> None:
    """Anyone who may create ledgers can name such bookies; one of five that is really lost is handled all the same."""
    async with stores(tmp_path, 1) as (here,):
        invented = tuple(f"nobody-{number}:3181" for number in range(6))
        for number, names in enumerate((("a", "b", "c"), invented)):
            await here.ledger_manager.create(LedgerId.unscoped(number), LedgerMetadata.new(names, 3, 2))
        options = AuditorOptions(lost_bookie_delay_seconds=0, roll_call_seconds=0.1, index=IndexOptions(1.0))
        auditor = Auditor(here, "here", options)

        async def invented_are_missed() -> bool:
            return auditor.statistics.roll is not None and auditor.statistics.roll.missed == len(invented)

        async def the_other_ledger_is_marked() -> bool:
            marks = [mark.value async for page in here.replication_metadata.marks() for mark in page]
            return any(mark.ledger_id == 0 and tuple(mark.replicas) == ("c",) for mark in marks)

        await auditor.start()
        async with asyncio.timeout(60):
            await until(invented_are_missed)
            await here.registration_manager.unregister_bookie("c")
            await until(the_other_ledger_is_marked)
        assert auditor.statistics.roll == RollCalled(len(invented) + 1, len(invented) + 1, storm=False)
        await auditor.stop()


async def test_a_candidate_whose_withdrawal_failed_stands_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor_module, "_STORE_PAUSE_SECONDS", 0.01)
    async with stores(tmp_path, 2) as (here, there):
        foreign = await there.replication_metadata.stand_for_auditor("java", lambda _state: None)
        auditor = Auditor(here, "here", AuditorOptions())
        withdrawn = asyncio.Event()

        async def is_candidate() -> bool:
            return auditor._vote is not None

        await auditor.start()
        await until(is_candidate)
        assert isinstance(auditor._vote, Vote)
        withdraw = auditor._vote.withdraw

        async def unanswered() -> None:
            await withdraw()
            withdrawn.set()
            raise UnknownOutcomeException("the answer was lost")

        monkeypatch.setattr(auditor._vote, "withdraw", unanswered)
        auditor.stand_back(True)
        await withdrawn.wait()
        await foreign.withdraw()
        auditor.stand_back(False)

        async def is_elected() -> bool:
            return auditor.statistics.is_auditor

        async with asyncio.timeout(30):
            await until(is_elected)
        await auditor.stop()


async def test_an_auditor_whose_vote_failed_after_its_election_is_out_of_office(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(tmp_path, 1) as (here,):
        told: list[bool] = []
        auditor = Auditor(here, "here", AuditorOptions(), on_office=told.append)

        async def in_office() -> bool:
            return told[-1:] == [True]

        async def out_of_office() -> bool:
            return True in told and not told[-1]

        async def stand(_voter: str, listener: VoteListener) -> Vote:
            listener(VoteState.ELECTED)  # through a gateway this may be told before the answer
            await until(in_office)
            auditor.stand_back(True)
            raise UnknownOutcomeException("the answer was lost, and the vote is over")

        monkeypatch.setattr(here.replication_metadata, "stand_for_auditor", stand)
        await auditor.start()
        async with asyncio.timeout(30):
            await until(out_of_office)
        assert not auditor.statistics.is_auditor
        await auditor.stop()
