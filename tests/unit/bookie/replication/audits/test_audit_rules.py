"""Which bookies are lost, and when."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.replication.audits.audit_rules import HeldBack, MassLoss, Roll, call_the_roll

KNOWN = ("a", "b", "c", "d", "e")


def roll(*present: str, missed: dict[str, int] | None = None, draining: tuple[str, ...] = ()) -> Roll:
    return Roll(KNOWN, present, missed or {}, draining)


def test_a_missed_bookie_is_noted_and_lost_after_the_delay() -> None:
    verdict = call_the_roll(roll("a", "b", "c", "d"), 1000, 5000)
    assert (verdict.to_note, verdict.lost, verdict.next_in_ms) == (("e",), (), 1000)
    verdict = call_the_roll(roll("a", "b", "c", "d", missed={"e": 5000}), 1000, 5999)
    assert (verdict.to_note, verdict.lost, verdict.next_in_ms) == ((), (), 1)
    verdict = call_the_roll(roll("a", "b", "c", "d", missed={"e": 5000}), 1000, 6000)
    assert (verdict.lost, verdict.next_in_ms) == (("e",), None)


def test_one_that_is_back_is_forgotten() -> None:
    verdict = call_the_roll(roll(*KNOWN, missed={"e": 5000}), 1000, 9000)
    assert (verdict.to_forget, verdict.lost) == (("e",), ())


def test_without_a_delay_it_is_lost_at_once() -> None:
    assert call_the_roll(roll("a", "b", "c", "d"), 0, 5000).lost == ("e",)


def test_where_the_note_is_from_a_clock_that_is_ahead_the_auditor_goes_by_what_it_saw() -> None:
    noted = roll("a", "b", "c", "d", missed={"e": 10**12})
    verdict = call_the_roll(replace(noted, away_ms={"e": 400}), 1000, 5000)
    assert (verdict.lost, verdict.next_in_ms) == ((), 600)
    assert call_the_roll(replace(noted, away_ms={"e": 1000}), 1000, 5000).lost == ("e",)


def test_when_most_are_missed_nobody_is_lost_before_it_is_ordered() -> None:
    missed = {"c": 0, "d": 0, "e": 0}
    verdict = call_the_roll(roll("a", "b", missed=missed), 1000, 5000)
    assert verdict.storm
    assert (verdict.lost, verdict.held) == ((), ("c", "d", "e"))
    ordered = call_the_roll(roll("a", "b", missed=missed), 1000, 5000, ordered=True)
    assert (ordered.lost, ordered.held, ordered.storm) == (("c", "d", "e"), (), True)


def test_in_a_storm_only_bookies_that_would_be_lost_are_held() -> None:
    verdict = call_the_roll(roll("a", "b", missed={"c": 0, "d": 4500, "e": 0}), 1000, 5000)
    assert (verdict.missed, verdict.held, verdict.next_in_ms) == (("c", "d", "e"), ("c", "e"), 500)


def test_what_is_a_storm_can_be_set() -> None:
    two = roll("a", "b", "c", missed={"d": 0, "e": 0})
    assert call_the_roll(two, 1000, 5000, mass_loss=MassLoss(share=0.39)).held == ("d", "e")
    assert call_the_roll(two, 1000, 5000, mass_loss=MassLoss(share=0.4)).lost == ("d", "e")
    # One alone never is.
    assert call_the_roll(roll("a", "b", "c", "d"), 0, 5000, mass_loss=MassLoss(share=0.01)).lost == ("e",)
    assert call_the_roll(roll(missed=dict.fromkeys(KNOWN, 0)), 0, 5000, mass_loss=MassLoss(share=1)).lost == KNOWN


def test_losses_that_lie_far_apart_are_no_storm() -> None:
    apart = roll("a", "b", missed={"c": 0, "d": 6000, "e": 12_000})
    assert call_the_roll(apart, 1000, 20_000, mass_loss=MassLoss(window_ms=11_999)).lost == ("c", "d", "e")
    assert call_the_roll(apart, 1000, 20_000, mass_loss=MassLoss(window_ms=12_000)).held == ("c", "d", "e")
    assert call_the_roll(apart, 1000, 20_000, mass_loss=MassLoss(window_ms=0)).held == ("c", "d", "e")
    # One that is not noted yet is missed now.
    fresh = roll("a", "b", missed={"c": 0, "d": 6000})
    assert not call_the_roll(fresh, 1000, 18_001, mass_loss=MassLoss(window_ms=12_000)).storm
    assert call_the_roll(fresh, 1000, 12_000, mass_loss=MassLoss(window_ms=12_000)).storm


FIVE_OF_A_RACK = tuple(f"{rack}{number}" for rack in "ab" for number in range(5))
RACKS = {each: f"/{each[0]}" for each in FIVE_OF_A_RACK}


def of_racks(*missed: str, known: tuple[str, ...] = FIVE_OF_A_RACK) -> Roll:
    return Roll(known, {*known} - {*missed}, dict.fromkeys(missed, 0), (), racks=RACKS)


def test_a_rack_that_is_missed_is_a_storm_too() -> None:
    most = of_racks("a0", "a1", "a2")
    verdict = call_the_roll(most, 1000, 5000)
    assert verdict.held_back == HeldBack(("a0", "a1", "a2"), 5, "/a")
    assert (verdict.lost, verdict.held) == ((), ("a0", "a1", "a2"))
    assert verdict.held_back.in_words == "3 of 5 bookies of rack /a are missed at once"
    # Not one whose loss is settled, or whose rack nobody knows.
    assert not call_the_roll(replace(most, settled=("a0",)), 1000, 5000).storm
    assert not call_the_roll(replace(most, racks={**RACKS, "a0": "/b"}), 1000, 5000).storm
    assert not call_the_roll(replace(most, racks={}), 1000, 5000).storm
    assert not call_the_roll(of_racks("a0", "a1", "b0", "b1"), 1000, 5000).storm


def test_who_is_lost_in_another_rack_is_not_held_with_it() -> None:
    verdict = call_the_roll(of_racks("a0", "a1", "a2", "b0"), 1000, 5000)
    assert verdict.held_back == HeldBack(("a0", "a1", "a2"), 5, "/a")
    assert (verdict.lost, verdict.held) == (("b0",), ("a0", "a1", "a2"))


def test_of_two_racks_at_once_both_are_held() -> None:
    more = (*FIVE_OF_A_RACK, *"cdefg")
    verdict = call_the_roll(of_racks("a0", "a1", "a2", "b0", "b1", "b2", "c", known=more), 1000, 5000)
    assert verdict.held_back == HeldBack(("a0", "a1", "a2", "b0", "b1", "b2"), 10, "/a, /b")
    assert (verdict.lost, verdict.held) == (("c",), ("a0", "a1", "a2", "b0", "b1", "b2"))


def test_a_rack_of_two_is_an_ordinary_loss() -> None:
    hosts = {f"{host}{number}": f"/{host}" for host in "abcde" for number in range(2)}
    gone = Roll(tuple(hosts), {*hosts} - {"a0", "a1"}, {"a0": 0, "a1": 0}, (), racks=hosts)
    verdict = call_the_roll(gone, 1000, 5000)
    assert (verdict.storm, verdict.lost) == (False, ("a0", "a1"))


def test_losses_that_are_settled_are_no_part_of_a_storm() -> None:
    missed = {"c": 0, "d": 0, "e": 0}
    verdict = call_the_roll(replace(roll("a", "b", missed=missed), settled=("d", "e")), 1000, 5000)
    assert not verdict.storm
    assert verdict.lost == ("c", "d", "e")
    # Of four that count three are missed; what is settled stays lost meanwhile.
    more = Roll((*KNOWN, "f"), ("f",), dict.fromkeys(KNOWN, 0), (), settled=("d", "e"))
    verdict = call_the_roll(more, 1000, 5000)
    assert verdict.held_back == HeldBack(("a", "b", "c"), 4)
    assert verdict.lost == ("d", "e")
    # One that is registered counts, whatever it holds.
    verdict = call_the_roll(replace(roll("a", "b", "c", missed=missed), settled=("a", "b")), 1000, 5000)
    assert verdict.lost == ("d", "e")


def test_bookies_that_only_ledgers_name_are_no_part_of_a_storm() -> None:
    invented = tuple(f"nobody-{number}" for number in range(6))
    known, missed = (*KNOWN, *invented), dict.fromkeys(("e", *invented), 0)
    one_lost = Roll(known, KNOWN[:4], missed, (), only_named=invented)
    verdict = call_the_roll(one_lost, 1000, 5000)
    # They are lost like the other one: their ledgers are marked.
    assert (verdict.storm, verdict.lost) == (False, ("e", *invented))
    assert call_the_roll(replace(one_lost, only_named=()), 1000, 5000).storm
    # Nor are they held in a storm of others, and they make none smaller.
    most = replace(one_lost, present=("a", "b"), missed_since=dict.fromkeys(("c", "d", "e", *invented), 0))
    verdict = call_the_roll(most, 1000, 5000)
    assert verdict.held_back == HeldBack(("c", "d", "e"), 5)
    assert (verdict.lost, verdict.held) == (invented, ("c", "d", "e"))
    # Nor in their rack, whichever a mapping gives them.
    racks = {**dict.fromkeys(KNOWN, "/r1"), **dict.fromkeys(invented, "/r2")}
    assert not call_the_roll(replace(one_lost, racks=racks), 1000, 5000).storm


def test_why_an_auditor_holds_back_is_kept_as_a_record() -> None:
    for word in (HeldBack(("c", "d", "e"), 5), HeldBack(("c", "d"), 2, "/r1")):
        assert HeldBack.decode(word.encode()) == word
    for damaged in (b"", b"\xff", b"[]", b'{"missed": 1, "known": 5}', b'{"missed": []}'):
        assert HeldBack.decode(damaged) is None


def test_two_of_five_and_one_of_two_are_no_storm() -> None:
    assert call_the_roll(roll("a", "b", "c", missed={"d": 0, "e": 0}), 1000, 5000).lost == ("d", "e")
    assert call_the_roll(Roll(("a", "b"), ("a",), {"b": 0}, ()), 1000, 5000).lost == ("b",)


def test_one_that_is_to_be_emptied_is_not_lost() -> None:
    verdict = call_the_roll(roll("a", "b", "c", "d", draining=("a", "e")), 1000, 5000)
    assert (verdict.draining, verdict.lost) == (("a",), ())


TIMES = st.integers(0, 10_000)


@given(st.sets(st.sampled_from(KNOWN)), st.dictionaries(st.sampled_from(KNOWN), TIMES), TIMES, TIMES, st.booleans())
def test_nobody_who_is_there_is_lost_and_nobody_too_early(
    present: set[str], missed: dict[str, int], delay: int, now: int, ordered: bool
) -> None:
    verdict = call_the_roll(Roll(KNOWN, present, missed, ()), delay, now, ordered=ordered)
    assert not present & {*verdict.lost, *verdict.to_note}
    assert set(verdict.to_forget) == present & missed.keys()
    for bookie in verdict.lost:
        assert ordered or max(0, now - missed.get(bookie, now)) >= delay
    if not (verdict.storm or ordered):
        waits = set(KNOWN) - present - set(verdict.lost)
        assert bool(waits) == (verdict.next_in_ms is not None)
