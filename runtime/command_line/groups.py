"""Command groups: uniform failures, a default command, and nouns whose commands come from several packages.

A group that is run itself (not as part of another) ends the process: an exception of a command becomes one line and an
exit code (see `output`); only an unexpected one keeps its traceback. typer's own classes differ between its versions,
hence Any in some places.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer
import typer.core

from bookgate.runtime.command_line.output import (
    FAILED,
    FORESEEN,
    INTERRUPTED,
    WRONG_USAGE,
    CommandFailed,
    end_quietly,
    fail,
    tell_error,
    tell_failure,
)

_EXTRAS = {"pyarrow": "bookie,spark-local", "pyspark": "bookie,spark-local"}
"""The extra that brings a module, where it is not `bookie`."""

_OWN_OPTIONS = ("--help", "--install-completion", "--show-completion")
"""Options of a group that defines no others."""


class Group(typer.core.TyperGroup):
    """A group of commands; see the module."""

    default_command: str | None = None
    """Runs if no command is named: `bookgate bookie --port 0` is `bookgate bookie start --port 0`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Shell completion of a line without a command lists the commands.
        completing = ctx.resilient_parsing and not args
        if self.default_command and not completing and _names_no_command(args):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)

        def run() -> Any:
            return super(Group, self).main(given, prog_name, complete_var, False, windows_expand_args, **extra)

        return end_with(run, as_json=_wants_json(given)) if standalone_mode else run()


def _names_no_command(args: Sequence[str]) -> bool:
    return not args or (args[0].startswith("-") and args[0] not in _OWN_OPTIONS)


class StartByDefault(Group):
    """A group whose default command is `start`."""

    default_command = "start"


def new_group(help_text: str | None, cls: type[Group] = Group, *, asks_for_a_command: bool = True) -> typer.Typer:
    """Creates a typer app with the common settings: plain help, and failures as `output` describes.

    Without a help text, the app's callback provides it (for a group that is a single command).
    """
    # typer does not accept None as a help text.
    given: dict[str, Any] = {} if help_text is None else {"help": help_text}
    return typer.Typer(
        cls=cls, no_args_is_help=asks_for_a_command, rich_markup_mode=None, add_completion=False, **given
    )


def end_with(run: Callable[[], Any], *, as_json: bool) -> NoReturn:
    """Runs a command and ends the process as `output` describes."""
    try:
        code = run()
    except FORESEEN as error:
        if isinstance(error, BrokenPipeError):
            end_quietly()
        tell_failure(error, as_json=as_json)
        sys.exit(error.exit_code if isinstance(error, CommandFailed) else FAILED)
    except ModuleNotFoundError as error:
        missing = (error.name or str(error)).partition(".")[0]
        install = f"pip install 'bookgate[{_EXTRAS.get(missing, 'bookie')}]'"
        tell_error(f"this needs {missing}, which is not installed; run: {install}", as_json=as_json)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except typer.Abort:
        tell_error("not answered; nothing was changed", as_json=as_json)
        sys.exit(FAILED)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _end_for_wrong_usage(error, as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _end_for_wrong_usage(error: Any, as_json: bool) -> NoReturn:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        # The exception's message is the help text.
        print(message, file=sys.stderr)
    else:
        hint = f"; see `{context.command_path} --help`" if context is not None else ""
        tell_error(message.rstrip(".") + hint, "WrongUsage", as_json=as_json)
    sys.exit(error.exit_code if isinstance(error.exit_code, int) else WRONG_USAGE)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether `--json` is present; found before parsing, because usage errors are reported in the same form."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def load_command(target: str) -> Any:
    """Loads the typer command named `module:attribute`. Raises ModuleNotFoundError."""
    module, _, attribute = target.partition(":")
    return typer.main.get_command(getattr(import_module(module), attribute))


def load_noun(name: str, targets: Sequence[str], install: str) -> Any:
    """Combines apps into one command or group; the first one provides the help text and the default command.

    Packages that are not installed are left out; running one of their commands prints what to install (`install` is a
    command line). Raises ModuleNotFoundError if none of them is installed.
    """
    loaded, missing = [], []
    for target in targets:
        try:
            loaded.append(load_command(target))
        except ModuleNotFoundError as error:
            missing.append(error)
    if not loaded:
        raise missing[0]
    first = loaded[0]
    first.name = name
    for other in loaded[1:]:
        _merge(first, other)
    if missing:
        _say_what_is_missing(first, f"needs {missing[0].name}, which is not installed; run: {install}")
    return first


def _merge(first: Any, other: Any) -> None:
    twice = first.commands.keys() & other.commands.keys()
    if twice:
        raise ValueError(f"two packages have the command {first.name} {', '.join(sorted(twice))}")
    first.commands.update(other.commands)


def _say_what_is_missing(group: Any, reason: str) -> None:
    """Explains `reason` for unknown commands, since they may belong to a package that is not installed."""
    known = group.get_command

    def get_command(ctx: Any, name: str) -> Any:
        return known(ctx, name) or not_installed(name, f"`bookgate {group.name} {name}` {reason}")

    group.get_command = get_command


def not_installed(name: str, message: str, help_text: str | None = None) -> Any:
    """A placeholder for a command whose packages are missing."""
    stub = typer.Typer(add_completion=False, rich_markup_mode=None)

    @stub.command(name, help=help_text, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def refuse() -> None:
        fail(message)

    return typer.main.get_command(stub)
