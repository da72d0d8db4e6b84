"""The log: lines that can be taken apart, whatever is in them, and whoever writes them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from bookgate.runtime.logs import KEPT_LINES, LineFormatter, log_bug, log_event
from tests.unit.runtime.log_lines import Line, parsed

ROOT = Path(__file__).parents[3]
VALUES = ["a", "a b", 'a="b"', "", "a\nb\r\x1b[1m", "\u2028\x85", "\x9b2J\x7f\u202ea\u2066", "ünï", "\\", "a=b"]


@pytest.mark.parametrize("as_json", [False, True])
def test_any_value_comes_back_and_stays_in_its_line(as_json: bool) -> None:
    record = _record("ledger_read", fields={f"field_{number}": value for number, value in enumerate(VALUES)})
    line = LineFormatter(as_json=as_json).format(record)
    assert line.isprintable(), "no terminal obeys it"
    [fields] = parsed(line)
    assert [fields[f"field_{number}"] for number in range(len(VALUES))] == VALUES
    assert (fields["level"], fields["logger"], fields["event"]) == ("info", "test", "ledger_read")


@pytest.mark.parametrize(("value", "text"), [(3, "3"), (0.5, "0.5"), ("a b", '"a b"'), ("", '""'), (None, "None")])
def test_values_are_short_as_text(value: object, text: str) -> None:
    line = LineFormatter(as_json=False).format(_record("gateway", {"state": "serving", "address": value}))
    assert line.endswith(f" level=info logger=test event=gateway state=serving address={text}")


def test_an_event_reads_the_same_in_the_log_of_somebody_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "test"):
        log_event(logging.getLogger("test"), "gateway", state="serving", address="a b")
        log_event(logging.getLogger("test"), "gateway", logging.DEBUG, state="unheard")
    assert caplog.messages == ['event=gateway state=serving address="a b"']


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_so_for_the_process_is_in_every_line(as_json: bool) -> None:
    formatter = LineFormatter(as_json=as_json)
    formatter.of_process["bookie"] = "bookie-1"
    records = [
        _record("started", {}),
        logging.LogRecord("library", logging.WARNING, "", 0, "100 %% of %s", ("it",), None),
    ]
    event, prose = parsed("\n".join(map(formatter.format, records)))
    assert event["bookie"] == prose["bookie"] == "bookie-1"
    assert (prose["level"], prose["message"]) == ("warning", "100 % of it")


def test_only_a_bug_has_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    formatter = LineFormatter(as_json=True)
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log_event(logging.getLogger("test"), "expected", logging.WARNING, error=error)
        log_bug(logging.getLogger("test"), "bug", error, ledger=7)
    expected, bug = parsed("\n".join(map(formatter.format, caplog.records)))
    assert expected["error"] == bug["error"] == "two\nlines"
    assert "exception" not in expected
    assert "Traceback" in str(bug["exception"])
    assert (bug["level"], bug["type"], bug["ledger"]) == ("error", "ValueError", 7)


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_nobody_caught_is_a_line_too(form: str) -> None:
    program = (
        "import threading, warnings, logging\n"
        "from bookgate.runtime.logs import set_up_logging, add_to_every_line\n"
        f"set_up_logging('info', '{form}')\n"
        "add_to_every_line(bookie='b')\n"
        "warnings.warn('old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()\n"
        "logging.getLogger('x').debug('unheard')\n"
        "raise KeyError('top')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines: list[Line] = parsed(done.stderr)
    assert [line.get("type") for line in lines] == [None, "ZeroDivisionError", "KeyError"]
    assert all(line["bookie"] == "b" for line in lines)


def _record(event: str, fields: dict[str, object]) -> logging.LogRecord:
    kept: list[logging.LogRecord] = []
    logger = logging.Logger("test")
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign, assignment]
    logger.addHandler(handler)
    log_event(logger, event, **fields)  # type: ignore[arg-type]
    return kept[0]


_FULL = """
import logging
from bookgate.runtime.logs import KEPT_LINES, log_event, recent_lines, set_up_logging
assert recent_lines() == ()
set_up_logging("info", "text")
logger = logging.getLogger("kept")
for number in range(KEPT_LINES):
    log_event(logger, "told", number=number)
log_event(logger, "not_told", logging.DEBUG)
log_event(logger, "long", logging.WARNING, text="x" * 10_000)
lines = recent_lines()
assert len(lines) == KEPT_LINES
assert "event=told number=1" in lines[0].text, lines[0]
assert (lines[-1].level, len(lines[-1].text)) == (logging.WARNING, 2001)
print(lines[-1].text[:-1])
"""


def test_the_latest_lines_are_kept() -> None:
    done = subprocess.run([sys.executable, "-c", _FULL], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    written = done.stderr.splitlines()
    assert len(written) == KEPT_LINES + 1
    assert written[-1].startswith(done.stdout.strip())
