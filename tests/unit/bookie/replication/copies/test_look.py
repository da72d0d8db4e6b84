"""Whom a look at a ledger asks, and how often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyroaring import BitMap64

from bookgate.bookie.replication.copies import look as module
from bookgate.bookie.replication.copies.look import beside_loop, look
from bookgate.bookie.replication.copies.verdicts import Copies, Holding, Unknown
from bookgate.ledger.metadata import LedgerMetadata
from tests.unit.bookie.replication.copies.test_verdicts import CLOSED, whole


class Answers:
    """What bookies say, time after time."""

    def __init__(self, *answers: dict[str, Copies]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def ask(self, bookie_id: str, due: BitMap64) -> Copies:
        said = self._answers[self.asked.count(bookie_id)][bookie_id]
        self.asked.append(bookie_id)
        assert due == whole_entries(bookie_id)
        return said


def whole_entries(bookie_id: str) -> BitMap64:
    state = whole(CLOSED)[bookie_id]
    assert isinstance(state, Holding)
    return state.entries


def found(
    first: dict[str, Copies], second: dict[str, Copies], monkeypatch: pytest.MonkeyPatch, *more: dict[str, Copies]
) -> tuple[Answers, dict[str, Copies]]:
    monkeypatch.setattr(module, "_ASK_AGAIN_SECONDS", 0.0)
    answers = Answers(first, second, *more)
    return answers, asyncio.run(look(CLOSED, answers.ask))


MEMBERS = sorted(CLOSED.bookies)


def test_a_whole_ledger_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, copies = found(whole(CLOSED), {}, monkeypatch)
    assert sorted(answers.asked) == MEMBERS
    assert copies == {name: whole(CLOSED)[name] for name in MEMBERS}


def test_what_lacks_is_asked_again_and_holds_what_it_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = whole_entries("b:1")
    one, another = BitMap64([entries.min()]), BitMap64([entries.max()])
    first = {**whole(CLOSED), "a:1": Unknown("no answer"), "b:1": Holding(entries - one)}
    answers, copies = found(first, {"b:1": Holding(entries - one - another)}, monkeypatch)
    assert sorted(answers.asked) == sorted([*MEMBERS, "b:1"])
    assert copies["b:1"] == Holding(entries - one)
    assert copies["a:1"] == Unknown("no answer")


def test_a_lack_that_is_not_said_again_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {**whole(CLOSED), "b:1": Holding(BitMap64())}
    for second in (whole(CLOSED)["b:1"], Unknown("no answer")):
        _, copies = found(first, {"b:1": second}, monkeypatch)
        assert copies["b:1"] == second


def test_two_answers_of_different_processes_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may come from one that had not read its files, or from another bookie under the id."""
    nothing, entries = BitMap64(), whole_entries("b:1")
    first = {**whole(CLOSED), "b:1": Holding(nothing), "c:1": Holding(nothing)}
    second: dict[str, Copies] = {"b:1": Holding(nothing, losses=1), "c:1": Holding(nothing)}
    for third in (Holding(entries, losses=1), Holding(nothing, losses=1)):
        answers, copies = found(first, second, monkeypatch, {"b:1": third})
        assert [answers.asked.count(name) for name in ("b:1", "c:1")] == [3, 2]
        assert copies["b:1"] == third
        assert copies["c:1"] == Holding(nothing)


def test_a_bookie_that_is_started_again_and_again_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, Copies]] = [{"b:1": Holding(BitMap64(), losses=number)} for number in range(1, 4)]
    _, copies = found({**whole(CLOSED), "b:1": Holding(BitMap64())}, answers[0], monkeypatch, *answers[1:])
    assert isinstance(copies["b:1"], Unknown)


@pytest.mark.asyncio
async def test_of_large_ledgers_one_at_a_time_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is looked at beside it; the bitmaps of several would take all memory of the process."""
    large = LedgerMetadata.new(tuple("abcd"), 2, 2).close((1 << 25) - 1, 0)
    begun, going_on = list[bool](), asyncio.Event()

    async def on_the_loop(_metadata: LedgerMetadata, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    async def looks(metadata: LedgerMetadata) -> None:
        async def ask(_bookie_id: str, due: BitMap64) -> Copies:
            begun.append(metadata is large)
            await going_on.wait()
            return Holding(due)

        await look(metadata, ask)

    monkeypatch.setattr(module, "beside_loop", on_the_loop)
    three = [asyncio.ensure_future(looks(metadata)) for metadata in (large, large, CLOSED)]
    for _ in range(100):
        await asyncio.sleep(0)  # turns in which another one could begin
    assert (begun.count(True), begun.count(False)) == (4, len(MEMBERS))
    going_on.set()
    await asyncio.gather(*three)
    assert begun.count(True) == 8


@pytest.mark.asyncio
async def test_work_with_the_bitmaps_of_a_large_ledger_keeps_the_loop_waiting_for_single_operations() -> None:
    large, loop_thread = LedgerMetadata.new(tuple("abcd"), 2, 2).close((1 << 25) - 1, 0), threading.get_ident()
    assert await beside_loop(large, threading.get_ident) != loop_thread
    assert await beside_loop(CLOSED, threading.get_ident) == loop_thread
