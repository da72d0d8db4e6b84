"""Halves of ledger ids stay where ids are read and written; everywhere else a ledger is named by its number (D1)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_BY_NUMBER = [
    *sorted((ROOT / "bookie" / "replication").rglob("*.py")),
    *sorted((ROOT / "bookie" / "collection").rglob("*.py")),
    *sorted((ROOT / "bookie" / "limbo").rglob("*.py")),
    *sorted((ROOT / "gateway").rglob("replication*.py")),
    *sorted((ROOT / "ledger").glob("replication*.py")),
    *sorted((ROOT / "thinclient" / "gateways").glob("replication*.py")),
    ROOT / "thinclient" / "tools" / "draining.py",
    ROOT / "thinclient" / "spark" / "jobs" / "marking.py",
]


@pytest.mark.parametrize("path", _BY_NUMBER, ids=lambda path: str(path.relative_to(ROOT)))
def test_auto_recovery_and_collection_know_numbers_only(path: Path) -> None:
    """A lower half taken for a number names another ledger, in scope 0."""
    text = path.read_text()
    assert ".low" not in text.replace(".lower", "")
    assert "LedgerId.unscoped(" not in text
