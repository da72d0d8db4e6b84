"""An empty path is refused by every command, in every form of a parameter."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from bookgate.thinclient.commands.main import app


def parse(path: str, arguments: list[str]) -> Any:
    """Reads a command's arguments without running it."""
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.get_command(typer.Context(command), name)
    return command.make_context(path, list(arguments))


@pytest.mark.parametrize(
    ("path", "arguments", "named"),
    [
        ("standalone", ["--data-dir", ""], "--data-dir"),
        ("bookie start", ["--config="], "--config"),
        ("config check", [""], "FILE"),
        ("ledger read", ["7", "--password-file", ""], "--password-file"),
        ("bookie inspect last-mark", ["b", ""], "PATHS"),
        ("bookie inspect index", ["b", "--logs", ""], "--logs"),
    ],
)
def test_an_empty_path_is_not_the_current_directory(path: str, arguments: list[str], named: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse(path, arguments)
    assert f"'{named}'" in refused.value.format_message()
    assert "it is empty, which is no path" in refused.value.format_message()
    assert parse(path, [each.replace("=", "=f") or "f" for each in arguments]).params
