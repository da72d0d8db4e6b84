"""What is read out of the records that auditors, workers and operators leave for each other."""

from __future__ import annotations

import pytest

from bookgate.ledger.replication_control import Loss, given_up_with, loss_of, lost_bookies_of, time_of

GIVEN_UP = b'{"entries": 1, "first_entries": [0], "lost_bookies": ["a:1", "b:1"], "time_ms": 1700000000000}'


def test_records_tell_their_time_and_who_was_lost() -> None:
    assert time_of(GIVEN_UP) == 1_700_000_000_000
    assert lost_bookies_of(GIVEN_UP) == ["a:1", "b:1"]
    assert loss_of(GIVEN_UP) == Loss(1, [0], False, ["a:1", "b:1"], 1_700_000_000_000, [])
    told = loss_of(GIVEN_UP[:-1] + b', "answers": {"a:1": "lost", "c:1": "lacks 1"}}')
    assert told.answers == {"a:1": "lost", "c:1": "lacks 1"}
    assert str(told) == "no copy of 1 entries (0); a:1: lost, c:1: lacks 1"
    assert loss_of(GIVEN_UP[:-1] + b', "answers": ["a:1"]}') == loss_of(GIVEN_UP)
    assert loss_of(b'{"entries": 0, "end_is_lost": true}') == Loss(0, (), True, [], 0, [])


def test_a_record_tells_with_which_bookies_its_ledger_was_given_up() -> None:
    record = b'{"given_up_with": {"b:1": 7, "a:1": 5}}'
    assert given_up_with(record) == {"a:1": 5, "b:1": 7}
    assert loss_of(record).given_up_with == ["a:1", "b:1"]
    assert given_up_with(b'{"given_up_with": {"b:1": "soon"}}') == {}


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"7", b"{}", b"null", b"\xff", b'{"time_ms": null}'])
def test_a_record_that_does_not_tell_is_old_and_names_nobody(record: bytes) -> None:
    assert time_of(record) == 0
    assert lost_bookies_of(record) == []
    assert loss_of(record) == Loss(0, (), False, [], 0, [])
    assert given_up_with(record) == {}
