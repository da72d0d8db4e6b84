"""Every state of a small world, depth first; the first trace that breaks a rule, made short.

A state that was met before, up to folding, is not explored again: of each the 64-bit hash is kept. Among n states the
chance that two have one hash, and that one of them is missed, is about n² / 2⁶⁴: 10⁻⁷ for a million.

Besides the rules, P12 is judged: a path that comes back to a state of its own goes on for ever without any fault, since
each fault lowers what is left of faults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.explore.letters import Violation
from tests.explore.world import State, Step, World

Judge = Callable[[State], None]
"""Raises Violation for a state that breaks a rule."""


@dataclass
class Found:
    """What an exploration came to."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    """Of CPU."""
    complete: bool = True
    """False when it stopped at the most states allowed."""
    violation: Violation | None = None
    trace: tuple[str, ...] = ()


def explore(world: World, judge: Judge, most_states: int = 0) -> Found:
    """Looks at every state until a rule is broken; at most so many, 0 for all."""
    began = time.process_time()
    found = Found()
    path: list[Step] = []
    try:
        _descend(world, judge, found, path, most_states)
    except (Violation, AssertionError) as error:
        found.violation = _violation(error)
        found.trace = shortened(world, judge, [world.words(step) for step in path], found.violation.invariant)
    found.seconds = time.process_time() - began
    return found


def _violation(error: Violation | AssertionError) -> Violation:
    return error if isinstance(error, Violation) else Violation("assertion", str(error) or repr(error))


def _descend(world: World, judge: Judge, found: Found, path: list[Step], most_states: int) -> None:
    key = world.canonical(world.start)
    visited = {key}
    judge(world.start)
    stack: list[tuple[State, int, Iterator[Step]]] = [(world.start, key, world.steps(world.start))]
    on_path = {key}
    found.states = 1
    while stack:
        state, key, steps = stack[-1]
        step = next(steps, None)
        if step is None:
            stack.pop()
            on_path.discard(key)
            if path:
                path.pop()
            continue
        path.append(step)
        found.steps += 1
        after = world.after(state, step)
        key = world.canonical(after)
        if key in visited:
            if key in on_path:
                raise Violation("P12", "the world comes back to a state of its own: this never ends")
            path.pop()
            continue
        visited.add(key)
        found.states += 1
        judge(after)
        if found.states == most_states:
            found.complete = False
            return
        on_path.add(key)
        stack.append((after, key, world.steps(after)))
        found.depth = max(found.depth, len(stack))


def replay(world: World, judge: Judge, trace: Sequence[str]) -> tuple[list[str], Violation | None]:
    """Follows a trace, leaving out the steps that can't be taken. Returns those taken and the rule that broke."""
    state, taken = world.start, []
    met = {world.canonical(state)}
    try:
        judge(state)
        for words in trace:
            step = next((step for step in world.steps(state) if world.words(step) == words), None)
            if step is None:
                continue
            taken.append(words)
            state = world.after(state, step)
            judge(state)
            key = world.canonical(state)
            if key in met:
                raise Violation("P12", "the world comes back to a state of its own: this never ends")
            met.add(key)
    except (Violation, AssertionError) as error:
        return taken, _violation(error)
    return taken, None


def shortened(world: World, judge: Judge, trace: Sequence[str], invariant: str) -> tuple[str, ...]:
    """A trace without the steps that the same invariant breaks without."""
    kept = list(trace)
    size = max(1, len(kept) // 2)
    while True:
        start, smaller = 0, False
        while start < len(kept):
            taken, violation = replay(world, judge, kept[:start] + kept[start + size :])
            if violation is not None and violation.invariant == invariant and len(taken) < len(kept):
                kept, smaller = taken, True
            else:
                start += size
        if size == 1 and not smaller:
            return tuple(kept)
        size = max(1, size // 2)
