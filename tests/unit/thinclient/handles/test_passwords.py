"""Which password opens a ledger: the one given, else that of the settings, else none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.ledger.errors import UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.config import ClientConfig, load_config
from bookgate.thinclient.handles.context import secrets_of


def record(number: int, password: bytes) -> LedgerRecord:
    return LedgerRecord(LedgerId.of_number(number), LedgerMetadata.new(("a",), 1, 1, password=password), 0)


def test_each_ledger_has_its_own() -> None:
    config = ClientConfig(passwords={7: b"seven", 8: b"eight"})
    for number, password in ((7, b"seven"), (8, b"eight"), (9, b"")):
        secrets_of(record(number, password), b"", config)
    secrets_of(record(7, b"given"), b"given", config)
    with pytest.raises(UnauthorizedAccessException):
        secrets_of(record(9, b"nine"), b"", config)
    with pytest.raises(UnauthorizedAccessException):
        secrets_of(record(7, b"seven"), b"eight", config)


def test_they_come_from_a_file_or_the_environment_and_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.toml"
    file.write_text('[passwords]\n7 = "seven"\n')
    config = load_config(file)
    assert config.password_of(7, b"") == b"seven"
    assert "seven" not in repr(config)
    monkeypatch.setenv("BOOKGATE_PASSWORDS", '{"8": "eight"}')
    assert load_config().passwords == {8: b"eight"}
