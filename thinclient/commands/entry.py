"""Where the command `bookgate` begins: without the extra that it needs it says what to install."""

from __future__ import annotations

import sys

_COMMAND_LINE = {"click", "rich", "typer"}
"""Modules of the extra `cli`."""


def main() -> None:
    """The command's entry point."""
    try:
        from bookgate.thinclient.commands.main import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _COMMAND_LINE:
            raise
        sys.exit(
            f"error: the command bookgate needs {missing}, which is not installed; run: pip install 'bookgate[cli]'"
        )
    run()
