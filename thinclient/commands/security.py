"""Commands `bookgate token` and `bookgate policy`: what an operator prepares and asks; neither needs a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import decide, parse_resource
from bookgate.runtime.security.policy import Policy, PolicyError, parse_policy
from bookgate.runtime.security.principal import Principal, parse_principal
from bookgate.runtime.security.static_tokens import new_token, parse_tokens, token_line

token_app = new_group("Static tokens, by which programs show who they are.")
policy_app = new_group("The policy, which says who may do what.")

_PolicyFile = Annotated[Path, typer.Option("--policy", help="The policy file.", envvar="BOOKGATE_SECURITY_POLICY")]


@token_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is: the principal is token:NAME.")],
    file: Annotated[
        Path | None, typer.Option("--file", help="Token file to which the line with its SHA-256 is added.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes a token and prints it, this once; what servers need of it is its SHA-256 only.

    Without --file the line for `security_tokens` is printed too. Servers read the file anew when it changes.

    JSON: {"principal", "token", "line"}.

    \b
    Example: bookgate token create spark --file /etc/bookgate/tokens
    """
    token, line = new_token(name)
    if file is not None:
        _add_line(file, line)
    if as_json:
        print_json({"principal": f"token:{name}", "token": token, "line": line})
        return
    print(token)
    if file is None:
        typer.echo(f"line for security_tokens: {line}", err=True)


@token_app.command("hash")
def hash_(
    name: Annotated[str, typer.Argument(help="Whose it is: the principal is token:NAME.")], as_json: AsJson = False
) -> None:
    """Reads a token that exists from standard input, and prints its line for the token file.

    JSON: {"principal", "line"}.

    \b
    Example: bookgate token hash spark
    """
    token = sys.stdin.readline().strip()
    if not token:
        fail("there is no token on standard input")
    line = token_line(name, token)
    if as_json:
        print_json({"principal": f"token:{name}", "line": line})
    else:
        print(line)


def _add_line(path: Path, line: str) -> None:
    """Adds to a file that only its owner reads; what is in it must be of use already."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        parse_tokens(before)
    except IncorrectParameterException as error:
        fail(f"token file {path}: {error}")
    separator = "\n" if before and not before.endswith("\n") else ""
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as opened:
        opened.write(f"{separator}{line}\n")


@policy_app.command()
def check(file: Annotated[Path, typer.Argument(help="The policy file.")], as_json: AsJson = False) -> None:
    """Checks a policy file; exit code 1 when servers would refuse it.

    JSON: {"valid", "bindings", "problems": [text]}.

    \b
    Example: bookgate policy check /etc/bookgate/policy.toml
    """
    policy = Policy()
    problems: tuple[str, ...] = ()
    try:
        policy = parse_policy(_text(file))
    except PolicyError as error:
        problems = error.problems
    if as_json:
        print_json({"valid": not problems, "bindings": len(policy.bindings), "problems": list(problems)})
    else:
        for problem in problems:
            print(problem)
        if not problems:
            counts = (len(policy.bindings), len(policy.limits), len(policy.quotas))
            print("{} is valid: {} bindings, {} limits, {} quotas".format(file, *counts))
    if problems:
        raise typer.Exit(1)


@policy_app.command()
def explain(
    principal: Annotated[str, typer.Argument(help="kind:name, such as token:spark, or anonymous.")],
    action: Annotated[str, typer.Argument(help="Such as ledger.read.")],
    resource: Annotated[str, typer.Argument(help="cluster, bookie:ID, scope:N, ledger:ID, ledger:SCOPE/ID,owner=…")],
    file: _PolicyFile,
    groups: Annotated[list[str] | None, typer.Option("--group", help="A group of the principal; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Says whether a policy allows something, and which binding decides; exit code 1 for a denial.

    JSON: {"allowed", "rule"}.

    \b
    Example: bookgate policy explain jwt:team-a ledger.read ledger:17,owner=jwt:team-a --policy policy.toml
    """
    who = parse_principal(principal)
    try:
        wanted = Action(action)
    except ValueError:
        fail(f"there is no action {action!r}; there are {', '.join(Action)}", 2)
    policy = parse_policy(_text(file))
    decision = decide(policy, Principal(who.kind, who.name, frozenset(groups or ())), wanted, parse_resource(resource))
    if as_json:
        print_json({"allowed": decision.allowed, "rule": decision.rule})
    else:
        print(f"{'allowed' if decision else 'denied'}: {decision.rule}")
    if not decision:
        raise typer.Exit(1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"policy file {path} can't be read: {error}")
