"""A secret in a log is heard, wherever the record goes and however it is written."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from bookgate.runtime.logs import log_bug, log_event
from bookgate.runtime.security.static_tokens import new_token
from tests.told_secrets import LISTENER, MARK, assert_nothing_told

_LOG = logging.getLogger(__name__)
_SECRET = f"{MARK}password"


@pytest.mark.parametrize(
    "form",
    [
        _SECRET,
        _SECRET.encode(),
        _SECRET.encode().hex(),
        base64.b64encode(_SECRET.encode()).decode(),
        new_token("n")[0],
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJzcGFyayJ9.AAAA",
    ],
    ids=["text", "bytes", "hex", "base64", "token", "jwt"],
)
def test_a_secret_in_a_record_is_heard(form: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        log_event(_LOG, "told", logging.WARNING, ledger=1)
        assert LISTENER.take() == []
        log_event(_LOG, "told", logging.CRITICAL, ledger=1, value=form)
        _LOG.critical("it is %s", form)
    assert len(LISTENER.take()) == 2
    assert LISTENER.take() == []


def test_a_secret_in_an_exception_is_heard() -> None:
    try:
        try:
            raise ValueError(_SECRET)
        except ValueError as error:
            raise RuntimeError("harmless") from error
    except RuntimeError as error:
        log_bug(_LOG, "failed", error)
    assert len(LISTENER.take()) == 1


def test_a_secret_in_a_file_is_found(tmp_path: Path) -> None:
    (log := tmp_path / "bookie.log").write_text("event=a ledger=1\n")
    assert_nothing_told([log, tmp_path / "none"])
    log.write_text(f"event=a ledger=1\nevent=b password={_SECRET}\n")
    with pytest.raises(AssertionError, match="event=b"):
        assert_nothing_told([log])
