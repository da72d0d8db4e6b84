"""Times, sizes and pairs as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.runtime.command_line.output import OutputForm, choose_form
from bookgate.thinclient.commands.ledger_output import (
    COLUMNS,
    bytes_of,
    columns_of,
    milliseconds_of,
    print_ledger,
    wanted_pairs_of,
)

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


@pytest.mark.parametrize(
    ("form", "shown", "hidden"),
    [
        (OutputForm.TABLE, "2026-11-28T02:58:24Z", "1795834704549"),
        (OutputForm.TSV, "created_ms\t1795834704549\n", "2026-11-28"),
        (OutputForm.JSON, '"created_ms": 1795834704549', "2026-11-28"),
    ],
)
def test_a_person_reads_when_a_ledger_was_created(
    form: OutputForm, shown: str, hidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = LedgerRecord(LedgerId(0, 7), LedgerMetadata.new(["b"], 1, 1), 0, 1795834704549)
    choose_form(form)
    try:
        print_ledger(record, form is OutputForm.JSON)
    finally:
        choose_form(None)
    printed = capsys.readouterr().out
    assert shown in printed
    assert hidden not in printed


def test_columns() -> None:
    assert list(columns_of("created, ledger,e/qw/qa,custom-metadata")) == [
        "created",
        "ledger",
        "E/Qw/Qa",
        "custom metadata",
    ]
    assert columns_of(None) == COLUMNS
