"""Command groups: uniform failures and options, a default command, and nouns whose commands come from several packages.

Commands have common options: a command with `--json` also has `--output`, unless it has an option of that name; one
with `--gateways` also has `--timeout`; one with `--password` also has `--password-file`. `time_limit` returns the value
of `--timeout`.

A group that is run itself (not as part of another) ends the process: an exception of a command becomes one line and an
exit code (see `output`); only an unexpected one keeps its traceback. typer's own classes differ between its versions,
hence Any in some places.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import typer
import typer.core

from bookgate.runtime.command_line.output import (
    FAILED,
    FORESEEN,
    INTERRUPTED,
    WRONG_USAGE,
    OutputForm,
    choose_form,
    end_quietly,
    exit_code_of,
    fail,
    print_error,
    print_failure,
)
from bookgate.runtime.command_line.secret_options import take_password, warn_of_arguments
from bookgate.runtime.wording import plain

_EXTRAS = {"pyarrow": "bookie,spark-local", "pyspark": "bookie,spark-local"}
"""The extra that installs a module, if it is not `bookie`."""

_OWN_OPTIONS = ("-h", "--help", "--install-completion", "--show-completion")
"""Options of a group that defines no others."""

_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
_TIMEOUT = "bookgate.timeout"
_JSON_FORMS = (OutputForm.JSON, OutputForm.JSONL)
_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH"}
"""Placeholders of values in help texts, by the value's type; choices are listed instead."""


@cache
def _common_options() -> tuple[Any, Any, Any]:
    """`--output`, `--timeout` and `--password-file`, as typer represents them."""
    probe = typer.Typer(add_completion=False, rich_markup_mode=None)

    @probe.command()
    def take(
        output_form: Annotated[
            OutputForm | None,
            typer.Option(
                "--output", "-o", metavar="FORM", help="table, tsv, json or jsonl. [default: table; tsv in a pipe]"
            ),
        ] = None,
        time_limit: Annotated[
            float | None,
            typer.Option(
                "--timeout", metavar="SECONDS", min=0.01, help="How long gateways are asked and connections made."
            ),
        ] = None,
        password_file: Annotated[
            Path | None,
            typer.Option(
                "--password-file",
                envvar="BOOKGATE_LEDGER_PASSWORD_FILE",
                help="File with that password; - is the first line of standard input.",
            ),
        ] = None,
    ) -> None: ...

    first, second, third, *_ = typer.main.get_command(probe).params
    _refuse_empty_paths(third)
    return first, second, third


def _names(parameters: Sequence[Any]) -> set[str]:
    return {name for each in parameters for name in each.opts}


def _with_common_options(parameters: Sequence[Any]) -> list[Any]:
    """A command's parameters with the common options added."""
    found = list(parameters)
    output, timeout, password_file = _common_options()
    for common, beside in ((output, "--json"), (timeout, "--gateways"), (password_file, "--password")):
        if beside in _names(found) and common.opts[0] not in _names(found):
            place = next(number for number, each in enumerate(found) if beside in each.opts)
            # An option that replaces a secret is placed after it.
            found.insert(place + (common is password_file), common)
    for each in found:
        is_argument = each.param_type_name == "argument"
        if each.metavar is None:
            each.metavar = str(each.name).upper() if is_argument else _metavar(each)
        if is_argument and not getattr(getattr(each, "type_descriptor", None), "is_choice", True):
            # It would be Python's name of the type, such as `list[str]`; of choices it is their list.
            each.display_type_rich = lambda ctx: None
        # The common options are one object for all commands.
        if _value_type(each) is Path and each not in _common_options():
            _refuse_empty_paths(each)
    return found


def _metavar(option: Any) -> str | None:
    """The placeholder; None leaves it to typer: for choices, flags, and versions that represent types in another
    way.
    """
    return _METAVARS.get(getattr(_value_type(option), "__name__", ""))


def _value_type(parameter: Any) -> Any:
    """The type of its value, or of each of its values."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    return next(iter(get_args(annotation)), annotation)


def _refuse_empty_paths(parameter: Any) -> None:
    """An empty text, as of a variable of the shell that is not set, would be the current directory."""
    converted = parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        if "" in (value if isinstance(value, list | tuple) else (value,)):
            raise typer.BadParameter("it is empty, which is no path", ctx=ctx, param=parameter)
        return converted(ctx, value)

    parameter.process_value = process_value


def _take_common_options(context: Any, names: Sequence[str]) -> None:
    """Removes the common options from the arguments of the command's function, and applies them."""
    given = context.params
    form = given.pop("output_form", None) if "output_form" in names else None
    if "time_limit" in names and (limit := given.pop("time_limit", None)) is not None:
        context.meta[_TIMEOUT] = limit
    if given.get("as_json") and form is None:
        form = OutputForm.JSON
    if form in _JSON_FORMS and "as_json" in given:
        given["as_json"] = True
    choose_form(form)
    if "password_file" in names:
        take_password(context, given.pop("password_file", None))
    warn_of_arguments(context)


def time_limit(context: Any) -> float | None:
    """The seconds of `--timeout`; None if it was not given."""
    limit = context.meta.get(_TIMEOUT)
    return float(limit) if limit is not None else None


class Command(typer.core.TyperCommand):
    """A command with the common options; see the module."""

    def __init__(self, *arguments: Any, params: Sequence[Any] | None = None, **options: Any) -> None:
        found = _with_common_options(params or ())
        self._common = [str(each.name) for each in found if each in _common_options()]
        super().__init__(*arguments, params=found, **options)

    def invoke(self, ctx: Any) -> Any:
        _take_common_options(ctx, self._common)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage_pieces(super().collect_usage_pieces(ctx))


def _usage_pieces(pieces: Sequence[str]) -> list[str]:
    """Shows a required argument as plain `ID`, not `{ID}`."""
    return [each.removeprefix("{").replace("}", "") if each.startswith("{") else each for each in pieces if each]


class Group(typer.core.TyperGroup):
    """A group of commands; see the module."""

    default_command: str | None = None
    """Runs if no command is named: `bookgate bookie --port 0` is `bookgate bookie start --port 0`."""

    def __init__(self, *arguments: Any, params: Sequence[Any] | None = None, **options: Any) -> None:
        found = _with_common_options(params or ())
        self._common = [str(each.name) for each in found if each in _common_options()]
        super().__init__(*arguments, params=found, **options)
        # typer does not set it for groups.
        self.suggest_commands = False
        if not self.commands and self.invoke_without_command:
            self.subcommand_metavar = ""

    def invoke(self, ctx: Any) -> Any:
        _take_common_options(ctx, self._common)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage_pieces(super().collect_usage_pieces(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if hasattr(error, "format_message") and args and not args[0].startswith("-"):
                near = difflib.get_close_matches(args[0], self.list_commands(ctx), 3, 0.6)
                meant = " or ".join(f"`{ctx.command_path} {name}`" for name in near)
                known = ", ".join(self.list_commands(ctx))
                hint = f"did you mean {meant}?" if near else f"there are {known}" if known else "it takes none"
                error.message = f"no such command {args[0]!r}; {hint}"  # type: ignore[attr-defined]
            raise

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
    return App(
        cls=cls,
        no_args_is_help=asks_for_a_command,
        rich_markup_mode=None,
        add_completion=False,
        context_settings=_HELP_OPTIONS,
        **given,
    )


class App(typer.Typer):
    """A typer app whose commands have the common options."""

    def command(self, *arguments: Any, cls: Any = None, **options: Any) -> Any:
        return super().command(*arguments, cls=cls or Command, **options)


def end_with(run: Callable[[], Any], *, as_json: bool) -> NoReturn:
    """Runs a command and ends the process as `output` describes."""
    try:
        code = run()
    except FORESEEN as error:
        if isinstance(error, BrokenPipeError):
            end_quietly()
        print_failure(error, as_json=as_json)
        sys.exit(exit_code_of(error))
    except ModuleNotFoundError as error:
        missing = (error.name or str(error)).partition(".")[0]
        install = f"pip install 'bookgate[{_EXTRAS.get(missing, 'bookie')}]'"
        print_error(f"this needs {missing}, which is not installed; run: {install}", as_json=as_json)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except typer.Abort:
        print_error("not answered; nothing was changed", as_json=as_json)
        sys.exit(FAILED)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _end_for_wrong_usage(error, as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _end_for_wrong_usage(error: Any, as_json: bool) -> NoReturn:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # The exception's message is the help text.
        print(error.format_message(), file=sys.stderr)
    else:
        error.message = plain(error.message)
        hint = f"; see `{context.command_path} --help`" if context is not None else ""
        print_error(error.format_message().rstrip(".") + hint, "WrongUsage", as_json=as_json)
    sys.exit(error.exit_code if isinstance(error.exit_code, int) else WRONG_USAGE)


def _wants_json(args: Sequence[str]) -> bool:
    """Whether a JSON form is asked for; found before parsing, because usage errors are reported in the same form."""
    options = list(args[: args.index("--")] if "--" in args else args)
    return "--json" in options or any(form in ("json", "jsonl") for form in _forms_in(options))


def _forms_in(options: Sequence[str]) -> Iterator[str]:
    for option, following in zip(options, [*options[1:], ""], strict=False):
        if option in ("--output", "-o"):
            yield following
        elif option.startswith(("--output=", "-o")):
            yield option.removeprefix("--output=").removeprefix("-o")


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
    first_is_there = True
    for target in targets:
        try:
            loaded.append(load_command(target))
        except ModuleNotFoundError as error:
            first_is_there = first_is_there and target != targets[0]
            missing.append(error)
    if not loaded:
        raise missing[0]
    first = loaded[0]
    first.name = name
    for other in loaded[1:]:
        _merge(first, other)
    if missing and isinstance(first, Group) and not first_is_there:
        # The default command is the first app's, which then says what it needs.
        first.default_command = "start"
        first.no_args_is_help = False
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
