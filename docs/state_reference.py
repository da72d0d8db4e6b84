"""The page docs/reference/states.md: the state machines of the cores, drawn from their tables."""

from __future__ import annotations

from enum import Enum
from typing import Any

from bookgate.bookie.mode.mode import LIFECYCLE
from bookgate.bookie.protocol.auth_gate import GATE
from bookgate.ledger.transitions import Transitions
from bookgate.thinclient.core.recovery import RECOVERY
from bookgate.thinclient.core.tailing import TAIL
from bookgate.thinclient.core.unbounded.taking_over import TAKE_OVER
from bookgate.thinclient.core.unbounded.writing import UNBOUNDED_WRITER
from bookgate.thinclient.core.writing import WRITER

_HEAD = """# States

Generated from the code by `make reference`: the state machines of the cores, each from its transition table. How cores
are driven is in [the architecture](../architecture.md#cores-and-shells). A state has an arrow for every event that can
occur in it.
"""

MACHINES: tuple[tuple[str, str, Transitions[Any, Any]], ...] = (
    ("The writer of a ledger", "thinclient/core/writing.py", WRITER),
    ("The recovery of a ledger", "thinclient/core/recovery.py", RECOVERY),
    ("The writer of an unbounded ledger", "thinclient/core/unbounded/writing.py", UNBOUNDED_WRITER),
    ("The take-over of an unbounded ledger", "thinclient/core/unbounded/taking_over.py", TAKE_OVER),
    ("A tailing reader", "thinclient/core/tailing.py", TAIL),
    ("A connection that must authenticate or use TLS", "bookie/protocol/auth_gate.py", GATE),
    ("A bookie's life", "bookie/mode/mode.py", LIFECYCLE),
)


def render() -> str:
    return "\n".join([_HEAD, *(_section(*machine) for machine in MACHINES)])


def _section(title: str, path: str, machine: Transitions[Any, Any]) -> str:
    events = {event: None for row in machine.table.values() for event in row}
    return f"""## {title}

`{path}`

{_diagram(machine)}

{_table("state", machine.table)}

{_table("event", events)}
"""


def _diagram(machine: Transitions[Any, Any]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"  [*] --> {machine.initial.name}"]
    for state, row in machine.table.items():
        lines += [f"  {state.name} --> {following.name}: {event.name}" for event, following in row.items()]
        if not row:
            lines.append(f"  {state.name} --> [*]")
    return "\n".join([*lines, "```"])


def _table(kind: str, members: Any) -> str:
    rows: list[Enum] = list(members)
    return "\n".join([f"| {kind} | meaning |", "|---|---|", *(f"| {row.name} | {row.value} |" for row in rows)])
