"""All commands alike: their help, their examples, the reference page, wrong usage, and completion in shells."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from bookgate.runtime.command_line.groups import StartByDefault, load_noun, new_group
from bookgate.runtime.command_line.output import CommandFailed, confirm
from bookgate.thinclient.commands.main import app, mounted_commands, parts_of_nouns

ROOT = Path(__file__).parents[4]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _module("command_reference")
COMMANDS = reference.commands()
BY_PATH = {each.path: each.command for each in COMMANDS}


@pytest.mark.parametrize("path", BY_PATH)
def test_every_command_says_what_it_does_with_an_example_that_parses(path: str) -> None:
    command = BY_PATH[path]
    text = reference.text_of(command)
    assert text.partition("\n")[0].endswith(".")
    example = shlex.split(reference.example_of(command))
    words = ["bookgate", *path.split()]
    assert example[: len(words)] == words
    # Raises for an option that does not exist, and for an argument that is missing.
    command.make_context(path, example[len(words) :])


@pytest.mark.parametrize("path", BY_PATH)
def test_every_command_has_json_and_its_shape_is_documented(path: str) -> None:
    command = BY_PATH[path]
    assert any("--json" in parameter.opts for parameter in command.params)
    assert any(line.startswith("JSON") for line in reference.text_of(command).splitlines())


def test_no_argument_is_explained_by_a_type_of_python() -> None:
    page = reference.render()
    assert [each for each in ("<str>", "<int", "<list[", " range>", "<Path") if each in page] == []
    assert "| `MODE <on\\|off>` |" in page


def test_what_destroys_asks() -> None:
    asking = {path for path, command in BY_PATH.items() if any("--yes" in each.opts for each in command.params)}
    assert asking == {
        "bookie format",
        "cluster format",
        "cluster nuke",
        "cookie delete",
        "cookie update",
        "ledger adopt",
        "ledger delete",
        "ledger metadata restore",
        "ledger replace-bookie",
        "scope delete",
        "spark leftovers",
        "stream cursor",
        "stream delete",
        "stream orphans",
        "stream trim",
    }


def test_every_command_of_bookkeeper_leads_to_one_of_ours_or_to_a_reason() -> None:
    for row in reference.ROWS:
        assert row.ours in BY_PATH if row.ours else row.remark


def test_nouns_of_several_packages_have_the_commands_of_all() -> None:
    parts = parts_of_nouns(mounted_commands())
    assert parts["bookie"][0] == "bookgate.bookie.commands.bookie:app"
    assert {"bookie start", "bookie format", "bookie list", "cluster init", "cluster status"} <= BY_PATH.keys()


def test_two_packages_with_the_same_command_are_told() -> None:
    with pytest.raises(ValueError, match=r"two packages have the command bookie .*list"):
        load_noun(
            "bookie",
            ["bookgate.thinclient.commands.bookies:bookies_app", "bookgate.thinclient.commands.bookies:bookies_app"],
            "",
        )


def test_wrong_usage_is_one_line_and_exit_code_2() -> None:
    result = CliRunner().invoke(app, ["ledger", "read", "seven"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: 'seven' is no qualified ledger name: give 32 hexadecimal digits")
    assert result.stderr.endswith("; an id alone is a number\n")
    assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, ["ledger", "read", "7", "--from", "seven"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: Invalid value for '--from'")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("see `bookgate ledger read --help`\n")
    result = CliRunner().invoke(app, ["bookie", "list", "--reed-only", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    answer = json.loads(result.stderr)
    assert answer["type"] == "WrongUsage"
    assert "--reed-only" in answer["error"]


def test_failures_have_one_shape() -> None:
    result = CliRunner().invoke(app, ["ledger", "show", "1", "-g", "etcd://x", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    answer = json.loads(result.stderr)
    assert answer.keys() == {"error", "type", "code"}
    assert (answer["type"], answer["code"]) == ("IncorrectParameterException", -14)


def test_a_bug_keeps_its_traceback() -> None:
    broken = new_group("Broken.")

    @broken.command()
    def fail_unforeseen() -> None:
        raise ZeroDivisionError

    @broken.command()
    def fail_foreseen() -> None:
        raise CommandFailed("it\ndid not work", 3)

    assert isinstance(CliRunner().invoke(broken, ["fail-unforeseen"]).exception, ZeroDivisionError)
    told = CliRunner().invoke(broken, ["fail-foreseen"])
    assert (told.exit_code, told.stderr) == (3, "error: it did not work\n")


def test_a_default_command_takes_the_options_that_stand_alone() -> None:
    group = new_group("A group.", StartByDefault)
    seen: list[tuple[str, int]] = []

    @group.command()
    def start(port: int = 1) -> None:
        seen.append(("start", port))

    @group.command()
    def other() -> None:
        seen.append(("other", 0))

    for arguments in ([], ["--port", "2"], ["start", "--port", "3"], ["other"]):
        assert CliRunner().invoke(group, arguments).exit_code == 0
    assert seen == [("start", 1), ("start", 2), ("start", 3), ("other", 0)]
    assert "Commands:" in CliRunner().invoke(group, ["--help"]).stdout


def test_questions_are_not_answered_by_who_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    group = new_group("A group.")

    @group.command()
    def destroy(yes: bool = False) -> None:
        confirm("Destroy it", yes)
        typer.echo("destroyed")

    @group.command()
    def keep() -> None:
        """So that this is a group."""

    assert CliRunner().invoke(group, ["destroy", "--yes"]).stdout == "destroyed\n"
    refused = CliRunner().invoke(group, ["destroy"], input="yes\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "use --yes" in refused.stderr


def _complete(shell: str, line: str) -> str:
    """What the shell's completion function gets for a line, the cursor at its end."""
    environment = {"_BOOKGATE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line}
    return CliRunner().invoke(app, [], env=environment, prog_name="bookgate").stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bookgate le", {"ledger"}),
        ("bookgate bookie ", {"start", "list", "info", "inspect", "format"}),
        ("bookgate ledger metadata ", {"show", "dump", "restore"}),
        ("bookgate bookie list --re", {"--read-only"}),
        ("bookgate ledger read 7 --format ", {"text", "raw", "json"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_shells_complete_nouns_commands_and_options(shell: str, line: str, offered: set[str]) -> None:
    found = _complete(shell, line)
    assert all(word in found for word in offered), found


def test_bash_itself_completes_once_completion_is_installed(tmp_path: Path) -> None:
    command = f'exec {sys.executable} -m bookgate "$@"'
    (tmp_path / "bookgate").write_text(f"#!/bin/sh\n{command}\n")
    (tmp_path / "bookgate").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": path}
    script = (
        "bookgate --install-completion bash >&2; . ~/.bashrc; complete -p bookgate >&2;"
        "COMP_WORDS=(bookgate led); COMP_CWORD=1; _bookgate_completion bookgate; echo ${COMPREPLY[@]}"
    )
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "ledger\n", done.stderr
