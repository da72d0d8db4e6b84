"""An empty path is refused by every command, in every form of a parameter."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from bookgate.thinclient.commands.main import app


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["standalone", "--data-dir", ""], "--data-dir"),
        (["bookie", "start", "--config="], "--config"),
        (["config", "check", ""], "FILE"),
        (["bookie", "inspect", "last-mark", "b", ""], "PATHS"),
        (["bookie", "inspect", "index", "b", "--logs", ""], "--logs"),
    ],
)
def test_an_empty_path_is_not_the_current_directory(arguments: list[str], named: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{named}'" in result.stderr
    assert "it is empty, which is no path" in result.stderr
