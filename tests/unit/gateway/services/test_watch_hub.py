"""The hub against a plain model: invariants M1, M2 and M7."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookgate.gateway.services.watch_hub import Answer, TooManySubscriptions, WatchHub
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

METADATA = LedgerMetadata.new(["b1"], 1, 1)
LEDGERS = [LedgerId.unscoped(number) for number in range(3)]
STREAMS = ["s1", "s2", "s3"]


def record(ledger_id: LedgerId, version: int) -> LedgerRecord:
    return LedgerRecord(ledger_id, METADATA, version)


def taken(hub: WatchHub, stream: str, limit: int = 10) -> list[Answer]:
    """What a reader with room for `limit` answers gets."""
    answers: list[Answer] = []
    while len(answers) < limit and (answer := hub.take(stream)) is not None:
        answers.append(answer)
    return answers


def versions(answers: list[Answer]) -> list[int | None]:
    return [answer.record.version if answer.record else None for answer in answers]


@pytest.fixture
def hub() -> WatchHub:
    hub = WatchHub()
    for stream in STREAMS:
        hub.open_stream(stream)
    return hub


def test_subscription_without_a_version_is_answered_with_the_present_state(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    assert taken(hub, "s1") == []
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 4)) == ["s1"]
    assert versions(taken(hub, "s1")) == [4]
    assert hub.subscribe("s2", LEDGERS[0], None)
    assert versions(taken(hub, "s2")) == [4]
    assert taken(hub, "s1") == []


def test_what_a_stream_is_subscribed_to_and_its_states(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.subscribe("s1", LEDGERS[1], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4))
    assert hub.subscribed("s1") == LEDGERS[:2]
    assert [hub.record(each) for each in LEDGERS] == [record(LEDGERS[0], 4), None, None]
    assert [hub.is_subscribed(stream, LEDGERS[0]) for stream in ("s1", "s2", "gone")] == [True, False, False]
    hub.unsubscribe("s1", LEDGERS[0])
    assert (hub.subscribed("s1"), hub.is_subscribed("s1", LEDGERS[0])) == (LEDGERS[1:2], False)
    assert hub.subscribed("gone") == []


def test_subscription_with_the_stored_version_waits_for_the_next_change(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], 4)
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 4)) == []
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 5)) == ["s1"]
    assert versions(taken(hub, "s1")) == [5]


def test_subscription_with_another_version_is_answered_at_once(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], 7)
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 4)) == ["s1"]
    assert versions(taken(hub, "s1")) == [4]


def test_state_that_becomes_the_clients_own_while_it_waits_is_not_sent(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], 5)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4))
    hub.state(LEDGERS[0], record(LEDGERS[0], 5))
    assert taken(hub, "s1") == []
    hub.state(LEDGERS[0], record(LEDGERS[0], 6))
    assert versions(taken(hub, "s1")) == [6]


def test_slow_reader_gets_the_newest_state_once(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    for version in range(5):
        hub.state(LEDGERS[0], record(LEDGERS[0], version))
    assert versions(taken(hub, "s1")) == [4]


def test_old_news_does_not_replace_the_newest_state(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4))
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 3)) == []
    hub.subscribe("s2", LEDGERS[0], None)
    assert versions(taken(hub, "s1")) == versions(taken(hub, "s2")) == [4]


def test_removal_is_told_once_and_ends_the_subscription(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 0))
    assert hub.state(LEDGERS[0], None) == ["s1"]
    assert versions(taken(hub, "s1")) == [None]
    assert hub.epoch(LEDGERS[0]) is None
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 1)) == []
    assert taken(hub, "s1") == []


def test_removal_not_yet_sent_is_not_told_beside_that_of_a_new_subscription(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], None)
    hub.subscribe("s1", LEDGERS[0], None)
    assert taken(hub, "s1") == []
    hub.state(LEDGERS[0], None)
    assert versions(taken(hub, "s1")) == [None]


def test_new_subscription_to_a_ledger_made_again_hears_nothing_of_the_removal(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], None)
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 0))
    assert versions(taken(hub, "s1")) == [0]


def test_a_ledger_that_only_has_the_id_of_the_one_that_was_seen_is_told_as_its_removal(hub: WatchHub) -> None:
    second = replace(record(LEDGERS[0], 4), incarnation=20)
    hub.subscribe("s1", LEDGERS[0], 4, 10)
    hub.subscribe("s2", LEDGERS[0], 4)
    assert hub.state(LEDGERS[0], second) == ["s1"]
    assert versions(taken(hub, "s1")) == [None]
    assert versions(taken(hub, "s2")) == []
    # The same with a state that is known already, and of a ledger that nobody else wants.
    assert hub.subscribe("s1", LEDGERS[0], 4, 10)
    hub.close_stream("s2")
    assert hub.epoch(LEDGERS[0]) is None
    assert hub.close_stream("s1") == [LEDGERS[0]]


def test_limit_refuses_one_more_but_not_a_repeat() -> None:
    hub = WatchHub(max_subscriptions_a_stream=2)
    hub.open_stream("s1")
    hub.subscribe("s1", LEDGERS[0], None)
    hub.subscribe("s1", LEDGERS[1], None)
    hub.subscribe("s1", LEDGERS[1], 3)
    with pytest.raises(TooManySubscriptions):
        hub.subscribe("s1", LEDGERS[2], None)


def test_limit_of_all_streams_together() -> None:
    hub = WatchHub(max_subscriptions=2)
    for stream, ledger in (("s1", 0), ("s2", 1)):
        hub.open_stream(stream)
        hub.subscribe(stream, LEDGERS[ledger], None)
    with pytest.raises(TooManySubscriptions, match="this gateway"):
        hub.subscribe("s1", LEDGERS[2], None)
    hub.subscribe("s1", LEDGERS[0], 3)
    hub.close_stream("s2")
    hub.subscribe("s1", LEDGERS[2], None)
    hub.unsubscribe("s1", LEDGERS[2])
    hub.subscribe("s1", LEDGERS[1], None)
    assert hub.subscription_count == 2


def test_new_epoch_when_wanted_again(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    first = hub.epoch(LEDGERS[0])
    hub.subscribe("s2", LEDGERS[0], None)
    assert hub.epoch(LEDGERS[0]) == first
    hub.unsubscribe("s1", LEDGERS[0])
    hub.close_stream("s2")
    assert hub.epoch(LEDGERS[0]) is None
    hub.subscribe("s1", LEDGERS[0], None)
    assert hub.epoch(LEDGERS[0]) not in (None, first)


class HubMachine(RuleBasedStateMachine):
    """Streams come and go, ledgers change and disappear, readers take when they like."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = WatchHub()
        self.store: dict[LedgerId, int] = {}
        self.open: set[str] = set()
        # What each subscription's client has seen last, and the newest version the hub was told while it existed.
        self.seen: dict[tuple[str, LedgerId], int | None] = {}
        self.first: set[tuple[str, LedgerId]] = set()
        self.owed_removals: dict[tuple[str, LedgerId], int] = {}

    @rule(stream=st.sampled_from(STREAMS))
    def open_stream(self, stream: str) -> None:
        if stream not in self.open:
            self.open.add(stream)
            self.hub.open_stream(stream)

    @rule(stream=st.sampled_from(STREAMS))
    def close_stream(self, stream: str) -> None:
        self.hub.close_stream(stream)
        self.open.discard(stream)
        for key in [key for key in self.seen if key[0] == stream]:
            del self.seen[key]
            self.first.discard(key)
        for key in [key for key in self.owed_removals if key[0] == stream]:
            del self.owed_removals[key]

    @rule(stream=st.sampled_from(STREAMS), ledger=st.sampled_from(LEDGERS), version=st.none() | st.integers(0, 5))
    def subscribe(self, stream: str, ledger: LedgerId, version: int | None) -> None:
        if stream not in self.open:
            return
        self.hub.subscribe(stream, ledger, version)
        # The new subscription says how it is: a removal that waits is the old one's.
        self.owed_removals.pop((stream, ledger), None)
        self.seen[stream, ledger] = version
        self.first.add((stream, ledger))
        # The store's listener tells the present state of what is newly wanted.
        if ledger in self.store:
            self.hub.state(ledger, record(ledger, self.store[ledger]))
        else:
            self.told_removed(ledger)

    @rule(stream=st.sampled_from(STREAMS), ledger=st.sampled_from(LEDGERS))
    def unsubscribe(self, stream: str, ledger: LedgerId) -> None:
        if stream in self.open:
            self.hub.unsubscribe(stream, ledger)
            self.seen.pop((stream, ledger), None)
            self.first.discard((stream, ledger))
            self.owed_removals.pop((stream, ledger), None)

    @rule(ledger=st.sampled_from(LEDGERS))
    def change(self, ledger: LedgerId) -> None:
        self.store[ledger] = self.store.get(ledger, -1) + 1
        self.hub.state(ledger, record(ledger, self.store[ledger]))

    @rule(ledger=st.sampled_from(LEDGERS))
    def old_news(self, ledger: LedgerId) -> None:
        if self.store.get(ledger, 0) > 0:
            self.hub.state(ledger, record(ledger, self.store[ledger] - 1))

    @precondition(lambda self: bool(self.store))
    @rule(ledger=st.sampled_from(LEDGERS))
    def remove(self, ledger: LedgerId) -> None:
        if self.store.pop(ledger, None) is not None:
            self.told_removed(ledger)

    def told_removed(self, ledger: LedgerId) -> None:
        self.hub.state(ledger, None)
        for key in [key for key in self.seen if key[1] == ledger]:
            del self.seen[key]
            self.first.discard(key)
            self.owed_removals[key] = 1

    @rule(stream=st.sampled_from(STREAMS), limit=st.integers(1, 4))
    def take(self, stream: str, limit: int) -> None:
        for answer in taken(self.hub, stream, limit):
            key = (stream, answer.ledger_id)
            if answer.record is None:
                assert self.owed_removals.pop(key) == 1
                continue
            seen = self.seen[key]
            if key not in self.first:
                assert seen is not None
                assert answer.record.version > seen, "M1"
            assert answer.record.version != seen, "M1"
            self.seen[key] = answer.record.version
            self.first.discard(key)

    @invariant()
    def store_listeners_are_the_watched_ledgers(self) -> None:
        watched = {ledger for _, ledger in self.seen}
        assert self.hub.ledger_count == len(watched), "M7"
        assert all((self.hub.epoch(ledger) is not None) == (ledger in watched) for ledger in LEDGERS), "M7"
        assert self.hub.subscription_count == len(self.seen)

    def teardown(self) -> None:
        for stream in self.open:
            self.take(stream, 1000)
        for (_, ledger), seen in self.seen.items():
            assert seen == self.store[ledger], "M2"
        assert not self.owed_removals, "M2"
        for stream in list(self.open):
            self.close_stream(stream)
        assert self.hub.ledger_count == 0, "M7"


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 3), max_size=20))
def test_every_subscription_gets_its_turn(limits: list[int]) -> None:
    hub = WatchHub()
    hub.open_stream("s")
    ledgers = [LedgerId.unscoped(number) for number in range(sum(limits))]
    for ledger in ledgers:
        hub.subscribe("s", ledger, None)
        hub.state(ledger, record(ledger, 0))
    assert [answer.ledger_id for limit in limits for answer in taken(hub, "s", limit)] == ledgers
