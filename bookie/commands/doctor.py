"""`bookgate doctor`: a table of what was found and what to change; exit code 1 when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.bookie.tools.configuration.check import part_of, problems_of
from bookgate.bookie.tools.doctor.diagnosis import judge
from bookgate.bookie.tools.doctor.findings import Finding, FindingLevel
from bookgate.bookie.tools.doctor.missing_policy import missing_policy
from bookgate.bookie.tools.doctor.probe import look
from bookgate.bookie.tools.doctor.secret_files import readable_secrets
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, fail, print_json, print_table
from bookgate.runtime.command_line.tables import Styled, Table
from bookgate.runtime.event_loop import run_async
from bookgate.runtime.settings_loader import gather, read_file
from bookgate.thinclient.commands.client_options import Gateways, client_config
from bookgate.thinclient.gateways.uri import is_gateway_uri

app = new_group(None, asks_for_a_command=False)

_STYLES = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.ERROR: "bold red"}


@app.callback(invoke_without_command=True)
def doctor(
    context: typer.Context,
    gateways: Gateways = None,
    ensemble_size: Annotated[int, typer.Option("--ensemble", min=1, help="Bookies that a new ledger needs.")] = 3,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each step; a few times that in all.")] = 5.0,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", help="Configuration file to check as well, and the secrets it names; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Looks at gateways, their metadata store, every bookie and auto-recovery, and says what to change.

    Needs nothing but a way to a gateway; what else is out of reach is a finding. Exit code 1 when there is an error;
    warnings leave it 0.

    JSON: {"healthy", "findings": [{"level": "ok" | "warning" | "error", "subject", "what", "advice"}]}.

    \b
    Example: bookgate doctor --gateways grpc://gw-1:4181 --file bookie.toml
    """
    config = client_config(context, gateways)
    if not config.gateways or not is_gateway_uri(config.gateways):
        fail("name the gateways to look at: --gateways grpc://host:4181,host:4181 or BOOKGATE_GATEWAYS")
    problems = {str(file): _problems(file) for file in files or []}
    findings = judge(run_async(look(config, timeout, problems)), ensemble_size)
    findings += [finding for file in files or [] for finding in (*readable_secrets(file), *missing_policy(file))]
    _print(findings, as_json)
    if any(finding.level is FindingLevel.ERROR for finding in findings):
        raise typer.Exit(1)


def _problems(file: Path) -> tuple[str, ...]:
    try:
        content = read_file(file)
        part = part_of(content)
        gathered = gather(part.settings, content, str(file))
        return tuple(map(str, (*gathered.problems(), *problems_of(part, gathered.given))))
    except IncorrectParameterException as error:
        return (str(error),)


def _print(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        described = [
            {"level": each.level.value, "subject": each.subject, "what": each.what, "advice": each.advice}
            for each in findings
        ]
        print_json({"healthy": not any(each.level is FindingLevel.ERROR for each in findings), "findings": described})
        return
    table = Table("level", "about", "found", "what to do")
    for each in findings:
        table.add_row(Styled(each.level.value, _STYLES[each.level]), each.subject, each.what, each.advice)
    print_table(table)


if __name__ == "__main__":
    app()
