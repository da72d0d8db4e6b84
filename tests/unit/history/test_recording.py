"""A history survives its file, and payloads say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.contents import content, payload_of, text_of
from tests.history.events import Healed
from tests.history.recorder import Recorder, load, save
from tests.unit.history.good_history import good_history


def test_a_saved_history_is_the_same(tmp_path: Path) -> None:
    save(good_history(), tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == good_history()


@pytest.mark.parametrize("size", [0, 1, 20, 5000])
def test_a_payload_names_its_content(size: int) -> None:
    text = content("writer", "7", 3, size)
    payload = payload_of(text)
    assert text_of(payload) == text
    assert len(payload) == max(size, len(text) + 1)


@pytest.mark.parametrize(
    "damage", [lambda p: p[:-1], lambda p: p + b"x", lambda p: p[:30] + b"\0" + p[31:], lambda p: b""]
)
def test_a_damaged_payload_names_none(damage: object) -> None:
    assert callable(damage)
    assert text_of(damage(payload_of(content("writer", "7", 3, 100)))).startswith("damaged: ")


def test_a_recorder_tells_its_listeners() -> None:
    recorder = Recorder(lambda: 1.5)
    told: list[object] = []
    recorder.listeners.append(told.append)
    recorder.add(Healed(recorder.now))
    assert told == recorder.history == [Healed(1.5)]
