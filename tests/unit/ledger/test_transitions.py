"""State machines as tables: every state can be reached, and what can't occur is an error."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from bookgate.bookie.mode.mode import LIFECYCLE
from bookgate.bookie.protocol.auth_gate import GATE
from bookgate.ledger.transitions import Transitions
from bookgate.thinclient.core.recovery import RECOVERY
from bookgate.thinclient.core.tailing import TAIL
from bookgate.thinclient.core.writing import WRITER, WriterEvent, WriterState

MACHINES: list[Transitions[Any, Any]] = [WRITER, RECOVERY, TAIL, GATE, LIFECYCLE]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: type(machine.initial).__name__)
def test_every_state_is_reached_and_every_event_leads_somewhere(machine: Transitions[Any, Any]) -> None:
    reached = {machine.initial}
    while more := {after for state in reached for after in machine.table[state].values()} - reached:
        reached |= more

    assert reached == set(type(machine.initial).__members__.values())
    events = {event for row in machine.table.values() for event in row}
    assert events == set(type(next(iter(events))).__members__.values())


def test_an_event_that_can_not_occur_is_an_error() -> None:
    assert WRITER.after(WriterState.CHANGING, WriterEvent.CHANGE_STORED) is WriterState.STEADY
    with pytest.raises(AssertionError, match="CHANGE_STORED can't occur in state ENDED"):
        WRITER.after(WriterState.ENDED, WriterEvent.CHANGE_STORED)


def test_a_table_that_lacks_a_state_is_refused() -> None:
    class Light(Enum):
        RED = "stop"
        GREEN = "go"

    with pytest.raises(AssertionError, match="GREEN"):
        Transitions(Light.RED, {Light.RED: {}})
