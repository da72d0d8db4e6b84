"""The forms of results: laid out, tab-separated, JSON, JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from bookgate.ledger.errors import BKException
from bookgate.runtime.command_line.groups import new_group, time_limit
from bookgate.runtime.command_line.output import (
    AsJson,
    OutputForm,
    PrintedListing,
    choose_form,
    print_aside,
    print_failure,
    print_json,
    print_note,
    print_result,
    print_table,
    shown_time,
)
from bookgate.runtime.command_line.tables import RowWriter, Styled, Table

app = new_group("For tests.")


@app.command()
def rows(as_json: AsJson = False, fail: bool = False) -> None:
    listing = PrintedListing[int](
        {"number": str, "text": lambda each: f"a\t{each}"}, lambda each: {"n": each}, as_json=as_json
    )
    listing.write([1, 2])
    if fail:
        raise OSError(5, "lost")
    listing.write([3])
    listing.end()
    print_note("3 rows")


@app.command()
def facts(as_json: AsJson = False) -> None:
    print_result({"some_name": None, "parts": [{"a": 1, "b": ["x", "y"]}], "n": 1.5, "e": []}, as_json)


@app.command()
def table(as_json: AsJson = False) -> None:
    if as_json:
        print_json([{"a": 1}, {"a": 2}])
        return
    shown = Table("a", right=("a",))
    shown.add_row("1")
    print_table(shown)


@app.command()
def own(output: Annotated[str, typer.Option("--output")] = "", as_json: AsJson = False) -> None:
    print_result({"output": output}, as_json)


@app.command()
def limited(context: typer.Context, gateways: Annotated[str, typer.Option("--gateways")] = "") -> None:
    print(time_limit(context))


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def default_form() -> Iterator[None]:
    yield
    choose_form(None)


def test_a_listing_in_each_form() -> None:
    separated = "number\ttext\n1\ta\\t1\n2\ta\\t2\n3\ta\\t3\n"
    assert printed("rows") == printed("rows", "-o", "tsv") == separated
    assert printed("rows", "-o", "table") == ("number  text\n1       a\\t1\n2       a\\t2\n3       a\\t3\n3 rows\n")
    assert json.loads(printed("rows", "--json")) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert printed("rows", "--json").count("\n") == 1
    assert printed("rows", "--output=json") == printed("rows", "--json")
    assert printed("rows", "-o", "jsonl") == '{"n": 1}\n{"n": 2}\n{"n": 3}\n'


def test_a_listing_that_fails_is_no_whole_document() -> None:
    result = CliRunner().invoke(app, ["rows", "--fail", "-o", "json"])
    assert result.exit_code == 1
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(result.stdout)
    assert json.loads(result.stderr)["error"] == "lost"


@pytest.mark.parametrize("form", [[], ["-o", "json"], ["-ojsonl"], ["--output=json"], ["--json"]])
def test_a_wrong_option_is_told_in_the_form_that_was_asked_for(form: list[str]) -> None:
    result = CliRunner().invoke(app, ["rows", *form, "--no-such-option"])
    assert result.exit_code == 2
    assert result.stderr.startswith('{"error"' if form else "error: ")


def test_an_empty_listing_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    for form, expected in ((OutputForm.TSV, "number\n"), (OutputForm.JSON, "[]\n"), (OutputForm.JSONL, "")):
        choose_form(form)
        PrintedListing[int]({"number": str}, str, as_json=form is not OutputForm.TSV).end()
        assert capsys.readouterr().out == expected


def test_facts_in_each_form() -> None:
    assert printed("facts") == "some_name\t\nparts.0\ta=1 b=x,y\nn\t1.5\ne\t[]\n"
    assert json.loads(printed("facts", "-o", "jsonl"))["parts"] == [{"a": 1, "b": ["x", "y"]}]
    laid_out = printed("facts", "-o", "table")
    assert "some name" in laid_out
    assert "parts 0" in laid_out


def test_a_table_in_each_form() -> None:
    assert printed("table") == "a\n1\n"
    assert printed("table", "-o", "jsonl") == '{"a": 1}\n{"a": 2}\n'
    assert "│ 1 │" in printed("table", "-o", "table")


def test_a_command_with_an_output_of_its_own_keeps_it() -> None:
    assert json.loads(printed("own", "--output", "there", "--json")) == {"output": "there"}


def test_commands_that_ask_gateways_have_a_time_limit() -> None:
    assert printed("limited", "--timeout", "2.5") == "2.5\n"
    assert printed("limited") == "None\n"
    assert "--timeout" not in printed("rows", "--help")


def test_rows_fit_the_terminal_and_keep_the_widths_of_the_first_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    writer = RowWriter(("id", "name"), True, frozenset({"id"}))
    writer.write([["7", "日本"], ["10", "x" * 30]])
    writer.write([["123456", "later"]])
    assert capsys.readouterr().out.splitlines() == [
        "id  name",
        " 7  日本",
        "10  " + "x" * 15 + "…",
        "123456  later",
    ]


def test_times() -> None:
    assert shown_time(1_795_533_644_777) == "2026-11-24T15:20:44Z"
    assert shown_time(None) == ""
    assert shown_time(0, "never") == "never"
    assert shown_time(253_402_300_799_999) == "9999-12-31T23:59:59Z"
    for beyond in (253_402_300_800_000, (1 << 63) - 1, -1, -(1 << 63)):
        assert shown_time(beyond, "never") == "never"


OBEYED = "\x1b[1A\x1b[2K\x07\x7f\x9b2J\u202etxt.\u2066\u2028a\nb"
SHOWN = r"\u001b[1A\u001b[2K\u0007\u007f\u009b2J\u202etxt.\u2066\u2028a\nb"


@pytest.mark.parametrize("form", [OutputForm.TABLE, OutputForm.TSV, OutputForm.JSON])
def test_nothing_that_a_terminal_obeys_is_printed(
    form: OutputForm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    choose_form(form)
    listing = PrintedListing[str]({"text": str}, str, as_json=form is OutputForm.JSON)
    listing.write([OBEYED])
    listing.end()
    print_result({"text": OBEYED, "pairs": {"key": OBEYED}, "rows": [{"name": OBEYED}]}, form is OutputForm.JSON)
    table = Table("text", OBEYED)
    table.add_row(Styled(OBEYED, "red"), OBEYED)
    print_table(table)
    print_note(OBEYED)
    print_aside(OBEYED)
    print_failure(BKException(OBEYED), as_json=form is OutputForm.JSON)
    seen = capsys.readouterr()
    for text in (seen.out, seen.err):
        assert SHOWN.replace(r"a\nb", "") in text
        assert [each for each in text if each not in "\t\n" and not each.isprintable()] == []


def test_a_forged_line_stays_in_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("ledger", "custom metadata")
    table.add_row("1", "a\n2")
    table.print_laid_out()
    assert capsys.readouterr().out.count("\n") == 5


def test_what_is_escaped_is_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": OBEYED})
    assert json.loads(capsys.readouterr().out) == {"text": OBEYED}
