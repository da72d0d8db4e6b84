"""`bookgate security`: what a secured cluster needs, made for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_aside, print_json

app = new_group("Certificates, tokens and a policy, to begin with.")


@app.callback()
def group() -> None:
    """Keeps this a group."""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; what is there stays.")],
    bookies: Annotated[
        list[str] | None,
        typer.Option("--bookie", help="Id of a bookie; repeatable.", show_default="bookie-1, bookie-2, bookie-3"),
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of the bookies' machines; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Makes an authority, a certificate for each bookie, tokens, a policy, and settings that use them.

    For a trial and to learn from: the authority's key lies beside the rest. A second run adds what is missing.

    JSON: {"directory", "made": [files]}.

    \b
    Example: bookgate security init ./secure --bookie bookie-1 --host bookie-1.example.net
    """
    try:
        from bookgate.bookie.tools.trial_security.files import TOKENS, make, not_bound
    except ImportError as error:
        fail(f"certificates are made by the package {error.name}; install bookgate[security]")
    names = bookies or ["bookie-1", "bookie-2", "bookie-3"]
    try:
        made = make(directory, names, hosts or [])
        unbound = not_bound(directory, names)
    except (OSError, ValueError) as error:
        fail(f"{directory} can't be used: {error}")
    if unbound:
        print_aside(
            f"policy.toml does not let these register: {', '.join(unbound)}; add them to its bindings of bookies"
        )
    if as_json:
        print_json({"directory": str(directory.absolute()), "made": [str(each) for each in made]})
        return
    print(f"{len(made)} files made in {directory.absolute()}; who may do what is in policy.toml")
    print(f"  bookies    bookgate bookie start --config {directory}/bookies/{names[0]}.toml …")
    print(f"  clients    bookgate --config {directory}/client.toml …")
    print(f"  tokens     {', '.join(f'{name}.token' for name in TOKENS)}")


if __name__ == "__main__":
    app()
