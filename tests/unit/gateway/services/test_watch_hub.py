"""The hub against a plain model: invariants M1, M2 and M7."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookgate.gateway.services.watch_hub import DAMAGED, Answer, TooManySubscriptions, WatchHub
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord

METADATA = LedgerMetadata.new(["b1"], 1, 1)
LEDGERS = [LedgerId.unscoped(number) for number in range(3)]
STREAMS = ["s1", "s2", "s3"]


def record(ledger_id: LedgerId, version: int, incarnation: int | None = None) -> LedgerRecord:
    return LedgerRecord(ledger_id, METADATA, version, incarnation=incarnation)


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
    second = record(LEDGERS[0], 4, 20)
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


@pytest.mark.parametrize("version", [0, 7])
def test_a_ledger_made_anew_ends_the_subscriptions_that_knew_the_former_one(hub: WatchHub, version: int) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4, 10))
    assert versions(taken(hub, "s1")) == [4]
    hub.state(LEDGERS[0], record(LEDGERS[0], 5, 10))  # not taken yet
    hub.subscribe("s2", LEDGERS[0], 5)  # an older client, which names no incarnation
    epoch = hub.epoch(LEDGERS[0])
    read = record(LEDGERS[0], version, 20)
    assert hub.subscribe("s3", LEDGERS[0], None, read=read) == ["s1", "s2", "s3"]
    assert [versions(taken(hub, stream)) for stream in STREAMS] == [[None], [None], [version]]
    # Its listener is to be asked for anew, and nothing older is told any more.
    assert hub.epoch(LEDGERS[0]) not in (None, epoch)
    assert hub.state(LEDGERS[0], record(LEDGERS[0], 9, 10)) == []
    assert hub.state(LEDGERS[0], record(LEDGERS[0], version + 1, 20)) == ["s3"]
    assert versions(taken(hub, "s3")) == [version + 1]


def test_who_subscribes_with_a_read_of_another_ledger_than_it_has_seen(hub: WatchHub) -> None:
    read = record(LEDGERS[0], 4, 20)
    for stream in STREAMS:
        hub.subscribe(stream, LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4, 10))
    assert versions(taken(hub, "s1")) == versions(taken(hub, "s2")) == versions(taken(hub, "s3")) == [4]
    # One knew the former ledger; one knows this one, and so does a client that names only the version.
    hub.subscribe("s1", LEDGERS[0], 4, 10, read)
    hub.subscribe("s2", LEDGERS[0], 4, 20, read)
    hub.subscribe("s3", LEDGERS[0], 4, None, read)
    assert [versions(taken(hub, stream)) for stream in STREAMS] == [[None], [], []]
    hub.state(LEDGERS[0], record(LEDGERS[0], 5, 20))
    assert [versions(taken(hub, stream)) for stream in STREAMS] == [[], [5], [5]]


def test_a_read_of_the_same_ledger_begins_no_new_period(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4, 10))
    epoch = hub.epoch(LEDGERS[0])
    assert hub.subscribe("s2", LEDGERS[0], None, read=record(LEDGERS[0], 5, 10)) == ["s1", "s2"]
    # What the listener has told meanwhile may be newer than the read.
    assert hub.subscribe("s3", LEDGERS[0], None, read=record(LEDGERS[0], 9, 9)) == ["s3"]
    assert [versions(taken(hub, stream)) for stream in STREAMS] == [[5], [5], [5]]
    assert hub.epoch(LEDGERS[0]) == epoch


def test_a_damaged_state_does_not_hide_that_the_ledger_was_made_anew(hub: WatchHub) -> None:
    hub.subscribe("s1", LEDGERS[0], None)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4, 10))
    assert versions(taken(hub, "s1")) == [4]
    hub.state(LEDGERS[0], record(LEDGERS[0], DAMAGED))
    hub.subscribe("s2", LEDGERS[0], 4, 10)
    assert versions(taken(hub, "s1")) == versions(taken(hub, "s2")) == [DAMAGED]
    epoch = hub.epoch(LEDGERS[0])
    hub.subscribe("s3", LEDGERS[0], None, read=record(LEDGERS[0], 0, 20))
    assert [versions(taken(hub, stream)) for stream in STREAMS] == [[None], [None], [0]]
    assert hub.epoch(LEDGERS[0]) != epoch


def test_whether_the_known_state_is_older_than_what_a_client_has_seen(hub: WatchHub) -> None:
    assert not hub.lags(LEDGERS[0], 5, 10)
    hub.subscribe("s1", LEDGERS[0], None)
    assert not hub.lags(LEDGERS[0], 5, 10)
    hub.state(LEDGERS[0], record(LEDGERS[0], 4, 10))
    seen = [(4, 10), (5, 10), (5, None), (4, None), (0, 20), (9, 9)]
    assert [hub.lags(LEDGERS[0], *each) for each in seen] == [False, True, True, False, True, False]


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
        self.incarnations = dict.fromkeys(LEDGERS, 1)
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
        if stream in self.open:
            self.subscribe_with(stream, ledger, version, None)

    def subscribe_with(self, stream: str, ledger: LedgerId, version: int | None, read: LedgerRecord | None) -> None:
        self.hub.subscribe(stream, ledger, version, read=read)
        # The new subscription says how it is: a removal that waits is the old one's.
        self.owed_removals.pop((stream, ledger), None)
        self.seen[stream, ledger] = version
        self.first.add((stream, ledger))
        # The store's listener tells the present state of what is newly wanted.
        if ledger in self.store:
            self.hub.state(ledger, self.stored(ledger))
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
        self.hub.state(ledger, self.stored(ledger))

    def stored(self, ledger: LedgerId) -> LedgerRecord:
        return record(ledger, self.store[ledger], self.incarnations[ledger])

    @rule(
        stream=st.sampled_from(STREAMS), ledger=st.sampled_from(LEDGERS), version=st.integers(0, 5), told=st.booleans()
    )
    def make_anew(self, stream: str, ledger: LedgerId, version: int, told: bool) -> None:
        """The next state is that of another ledger, be it told by the listener or read for a subscription."""
        if ledger not in self.store or not (told or stream in self.open):
            return
        self.store[ledger] = version
        self.incarnations[ledger] += 1
        epoch = self.hub.epoch(ledger)
        if told:
            self.hub.state(ledger, self.stored(ledger))
        else:
            self.subscribe_with(stream, ledger, None, None if epoch is None else self.stored(ledger))
        self.end([key for key, seen in self.seen.items() if key[1] == ledger and seen is not None])
        if told and any(key[1] == ledger for key in self.seen):
            assert self.hub.epoch(ledger) == epoch
        elif not told:
            assert self.hub.epoch(ledger) not in (None, epoch)

    @rule(ledger=st.sampled_from(LEDGERS))
    def old_news(self, ledger: LedgerId) -> None:
        if self.store.get(ledger, 0) > 0:
            self.hub.state(ledger, record(ledger, self.store[ledger] - 1, self.incarnations[ledger]))

    @rule(ledger=st.sampled_from(LEDGERS), version=st.integers(0, 9))
    def news_of_a_former_ledger(self, ledger: LedgerId, version: int) -> None:
        if ledger in self.store:
            self.hub.state(ledger, record(ledger, version, self.incarnations[ledger] - 1))

    @precondition(lambda self: bool(self.store))
    @rule(ledger=st.sampled_from(LEDGERS))
    def remove(self, ledger: LedgerId) -> None:
        if self.store.pop(ledger, None) is not None:
            self.incarnations[ledger] += 1
            self.told_removed(ledger)

    def told_removed(self, ledger: LedgerId) -> None:
        self.hub.state(ledger, None)
        self.end([key for key in self.seen if key[1] == ledger])

    def end(self, keys: list[tuple[str, LedgerId]]) -> None:
        for key in keys:
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
