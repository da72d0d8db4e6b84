"""Secrets passed to commands: in a file, on standard input, in the environment, or as an argument, with a warning.

    --password-file FILE   the file's content without the line end; `-` is the first line of standard input
    --password SECRET      works, and a line on standard error says that `ps` shows it

Not its job: what the secrets are for.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bookgate.runtime.command_line.output import WRONG_USAGE, OutputForm, chosen_form, fail
from bookgate.runtime.secret_files import secret_of

_SECRETS = ("password", "token")
"""Names of options that take a secret as an argument; each has a counterpart `--NAME-file`."""


def warn_of_arguments(context: Any) -> None:
    """Warns of each secret on the command line. A command with JSON output for a program prints no warning."""
    for option in context.command.params:
        if option.name in _SECRETS and context.params.get(option.name) and _source(context, option.name) == _ARGUMENT:
            warn_of_argument(f"--{option.name}", f"--{option.name}-file FILE, or the variable {option.envvar}")


def warn_of_argument(given: str, instead: str) -> None:
    """Warns of one secret. `given` names it, without its value; `instead` is what to use."""
    if chosen_form() in (OutputForm.JSON, OutputForm.JSONL):
        return
    print(f"warning: every user of this machine sees the secret in {given} (ps); use {instead}", file=sys.stderr)


def take_password(context: Any, file: Path | None) -> None:
    """Replaces the value of `--password` by the content of `--password-file`. The one closer to the command wins.

    Raises CommandFailed for an unusable file, and if both are given at the same level.
    """
    if file is None:
        return
    if context.params.get("password"):
        of_password, of_file = _source(context, "password"), _source(context, "password_file")
        if of_password == of_file:
            fail("the password is given twice; leave out --password, or --password-file", WRONG_USAGE)
        if of_password == _ARGUMENT:
            return
    try:
        context.params["password"] = secret_of(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        fail(f"--password-file {file} can't be read: {reason}", WRONG_USAGE)


_ARGUMENT = "COMMANDLINE"


def _source(context: Any, name: str) -> str:
    return str(context.get_parameter_source(name).name)
