"""Times, sizes and pairs as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.commands.ledger_output import bytes_of, milliseconds_of, wanted_pairs_of

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2h", datetime(2026, 11, 24, 10, tzinfo=UTC)),
        ("1.5d", datetime(2026, 11, 23, 0, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T10:00+02:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ],
)
def test_times(text: str, time: datetime) -> None:
    assert milliseconds_of(text, "--x", NOW) == time.timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1.5GB", 1_500_000_000), ("2m", 2_000_000)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text, "--x") == size


@pytest.mark.parametrize("text", ["", "-1", "1 parsec", "i", "yesterday"])
def test_what_is_neither_is_told_with_its_option(text: str) -> None:
    with pytest.raises(IncorrectParameterException, match=r"--x .* is no size"):
        bytes_of(text, "--x")
    with pytest.raises(IncorrectParameterException, match=r"--x .* is no time"):
        milliseconds_of(text, "--x", NOW)


def test_pairs() -> None:
    assert wanted_pairs_of(["a=b=c", "d", "e="]) == {"a": b"b=c", "d": None, "e": b""}
    with pytest.raises(IncorrectParameterException, match="neither KEY nor KEY=VALUE"):
        wanted_pairs_of(["=x"])
