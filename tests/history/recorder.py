"""Where a history grows: in memory, and as lines of JSON in a file for who wants to keep it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.history.events import Event, History, decode, encode


class Recorder:
    """`clock` gives the seconds since the run began. Belongs to one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.history: History = []
        self.listeners: list[Callable[[Event], None]] = []
        """Told of each event once it stands in the history."""

    @property
    def now(self) -> float:
        """The time for a new event."""
        return self._clock()

    def add(self, event: Event) -> None:
        self.history.append(event)
        for listener in self.listeners:
            listener(event)


def save(history: History, path: Path) -> None:
    """One event a line."""
    with path.open("w", encoding="utf-8") as file:
        for event in history:
            file.write(json.dumps(encode(event)) + "\n")


def load(path: Path) -> History:
    with path.open(encoding="utf-8") as file:
        return [decode(json.loads(line)) for line in file]
