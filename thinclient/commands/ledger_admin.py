"""More of `bookgate ledger`, for operators: metadata to files and back, a test of the cluster, renamed bookies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookgate.ledger import metadata_codec
from bookgate.ledger.bookie_info import check_bookie_id
from bookgate.ledger.errors import LedgerExistException
from bookgate.ledger.ledger_id import number_in_json
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.runtime.command_line.groups import new_group
from bookgate.runtime.command_line.output import AsJson, Yes, confirm, fail, print_result, progress
from bookgate.runtime.replaced_files import replace_file
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.commands.client_options import Gateways, client_config, with_client, with_metadata
from bookgate.thinclient.commands.ledger_naming import LedgerName, ledger_fields, names_ledger
from bookgate.thinclient.commands.ledger_output import print_ledger
from bookgate.thinclient.tools.renaming import BookieRenaming, rename_bookie
from bookgate.thinclient.tools.sanity import simple_test as run_simple_test

metadata_app = new_group("A ledger's metadata: to a file and back.")
admin_app = new_group("Ledgers, for operators.")
admin_app.add_typer(metadata_app, name="metadata")

_NOT_CLOSED = (
    "its end and the bookies that are replaced later are not in there, and restored it would end too early: entries "
    "that were acknowledged would not be named any more"
)

Dump = Annotated[Path, typer.Argument(metavar="FILE", help="Metadata as the store has it.", show_default=False)]


@metadata_app.command()
@names_ledger
def show(context: typer.Context, ledger_id: LedgerName, gateways: Gateways = None, as_json: AsJson = False) -> None:
    """Shows the metadata of a ledger: the same as `bookgate ledger show`.

    JSON: as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger metadata show 7
    """
    print_ledger(with_client(context, gateways, lambda client: client.read_record(ledger_id)), as_json)


@metadata_app.command()
@names_ledger
def dump(
    context: typer.Context, ledger_id: LedgerName, file: Dump, gateways: Gateways = None, as_json: AsJson = False
) -> None:
    """Writes the metadata to a file, as BookKeeper stores them, password included: keep it safe.

    Of a ledger that is not closed it is what is true now: bookies that are replaced later and the end are not in it.

    JSON: {"ledger_id", "file", "bytes", "version"}.

    \b
    Example: bookgate ledger metadata dump 7 ledger-7.metadata
    """
    record = with_client(context, gateways, lambda client: client.read_record(ledger_id))
    record.metadata.known_password()  # what lacks it can't be restored
    content = metadata_codec.encode(metadata_codec.without_password(record.metadata))
    # Readable by nobody else, also where another file stood before: it has the password.
    replace_file(file, content, 0o600)
    if not record.metadata.is_closed:
        typer.echo(f"warning: ledger {ledger_id} is not closed; {_NOT_CLOSED}", err=True)
    facts = {"file": str(file), "bytes": len(content), "version": record.version}
    print_result({**ledger_fields(ledger_id), **facts}, as_json)


@metadata_app.command()
@names_ledger
def restore(
    context: typer.Context,
    ledger_id: LedgerName,
    file: Dump,
    replace_existing: Annotated[
        bool, typer.Option("--update", help="Replace the metadata of a ledger that exists.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also metadata of a ledger that was open, or that name less than is there.")
    ] = False,
    # Not `Yes`, which has --force as another name.
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Creates a ledger's metadata from a file of `dump`, or of BookKeeper's own; --update replaces what is there.

    Wrong metadata loses entries: bookies delete what no metadata names, and readers believe what it says. So metadata
    of a ledger that was not closed are refused, as are those that would take a closed ledger's end or fragments away;
    --update shows what would change before it asks.

    JSON: the ledger, as `bookgate ledger show` has it.

    \b
    Example: bookgate ledger metadata restore 7 ledger-7.metadata
    """
    metadata = metadata_codec.decode(file.read_bytes())
    if not (metadata.is_closed or force):
        fail(
            f"{file} was made of ledger {ledger_id} before it was closed; {_NOT_CLOSED}. `bookgate ledger adopt` makes "
            "metadata from what bookies hold; --force restores these all the same"
        )
    present: LedgerRecord | None = None
    if replace_existing:
        present = with_client(context, gateways, lambda client: client.read_record(ledger_id))
        less = loss_of(present.metadata, metadata)
        if less is not None and not force:
            fail(f"ledger {ledger_id}: {less}; --force replaces its metadata all the same")
        for line in difference(present.metadata, metadata):
            typer.echo(line, err=True)
        confirm(f"Replace the metadata of ledger {ledger_id}", yes)

    async def work(factory: LedgerManagerFactory) -> LedgerRecord:
        manager, name = factory.ledger_manager, ledger_id
        if present is not None:
            # What was shown is what is replaced.
            return await manager.write_to(present, metadata)
        try:
            return await manager.create(name, metadata)
        except LedgerExistException:
            fail(f"ledger {ledger_id} exists; --update replaces its metadata")

    print_ledger(with_metadata(context, gateways, work), as_json)


def loss_of(present: LedgerMetadata, restored: LedgerMetadata) -> str | None:
    """What `restored` would no longer name of a ledger, None where it names as much."""
    if present.is_closed and not restored.is_closed:
        return "it is closed, and the file says that it is not"
    if len(restored.fragments) < len(present.fragments):
        return f"it has {len(present.fragments)} fragments, and the file only {len(restored.fragments)}"
    if present.is_closed and restored.last_entry_id < present.last_entry_id:
        return f"it ends at entry {present.last_entry_id}, and in the file at {restored.last_entry_id}"
    return None


def difference(present: LedgerMetadata, restored: LedgerMetadata) -> list[str]:
    """What would change, a line each; passwords are not shown."""
    names = ("state", "last_entry_id", "length", "ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type")
    pairs = [(name, getattr(present, name), getattr(restored, name)) for name in names]
    for number in range(max(len(present.fragments), len(restored.fragments))):
        old, new = ([*each.fragments, *[None] * (number + 1)][number] for each in (present, restored))
        pairs.append((f"fragment {number}", old, new))
    pairs.append(("custom metadata", dict(present.custom_metadata), dict(restored.custom_metadata)))
    lines = [f"{name}: {old} becomes {new}" for name, old, new in pairs if old != new]
    check = present.password_check
    same = present.password == restored.password if check is None else check.matches(restored.password or b"")
    return lines if same else [*lines, "the password changes"]


@admin_app.command("simple-test")
def simple_test(
    context: typer.Context,
    ensemble_size: Annotated[int, typer.Option("--ensemble-size", "-e", min=1, help="Bookies to spread over.")] = 3,
    write_quorum_size: Annotated[
        int | None,
        typer.Option("--write-quorum-size", "-w", min=1, help="Copies. Default: 2, or 1 for one bookie."),
    ] = None,
    ack_quorum_size: Annotated[
        int | None,
        typer.Option("--ack-quorum-size", "-a", min=1, help="Answers to wait for. Default: the write quorum."),
    ] = None,
    entries: Annotated[int, typer.Option("--entries", "-n", min=1, help="Entries to write.")] = 1000,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Creates a ledger, writes entries one by one, reads them back and deletes it. Exit code 1 when they differ.

    JSON: {"ledger_id", "entries", "passed"}.

    \b
    Example: bookgate ledger simple-test -e 3 -w 2 -a 2 -n 1000
    """
    copies = write_quorum_size or min(2, ensemble_size)
    quorums = ensemble_size, copies, ack_quorum_size or copies

    async def work(bookkeeper: BookKeeper) -> tuple[int, bool]:
        with progress("writing and reading", 2 * entries, "entries") as done:
            return await run_simple_test(bookkeeper, quorums, entries, done)

    ledger_id, passed = with_client(context, gateways, work)
    print_result({"ledger_id": ledger_id, "entries": entries, "passed": passed}, as_json)
    if not passed:
        raise typer.Exit(1)


@admin_app.command("replace-bookie")
def replace_bookie(
    context: typer.Context,
    old: Annotated[str, typer.Argument(help="The id that ledgers name now.", show_default=False)],
    new: Annotated[str, typer.Argument(help="The id to name instead.", show_default=False)],
    limit: Annotated[int | None, typer.Option(min=1, help="Change at most so many ledgers.")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Ledgers to change a second.")] = 5.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
    gateways: Gateways = None,
    as_json: AsJson = False,
) -> None:
    """Writes another bookie id into the metadata of all ledgers that name the old one. It moves no entries.

    For a bookie that keeps its data and gets another id. Stop it first; then update its cookie and start it.

    JSON: {"old", "new", "looked_at", "named", "changed", "failed": [{"ledger_id", "error"}], "dry_run"}.

    \b
    Example: bookgate ledger replace-bookie 10.0.0.1:3181 bookie-1 --dry-run
    """
    check_bookie_id(new)
    if not dry_run:
        confirm(f"Write {new} for {old} into the metadata of all ledgers", yes)
    config = client_config(context, gateways)

    async def work(factory: LedgerManagerFactory) -> BookieRenaming:
        with progress("looking at ledgers", None, "ledgers") as done:
            return await rename_bookie(
                factory, config, old, new, limit=limit, rate=rate, dry_run=dry_run, on_looked_at=done
            )

    found = with_metadata(context, gateways, work)
    failed = [{"ledger_id": number_in_json(each.number), "error": str(error)} for each, error in found.failed]
    counts = {"looked_at": found.looked_at, "named": found.named, "changed": found.changed}
    print_result({"old": old, "new": new, **counts, "failed": failed, "dry_run": dry_run}, as_json)
    if failed:
        raise typer.Exit(1)
