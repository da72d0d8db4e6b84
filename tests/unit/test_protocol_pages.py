"""The protocol's pages say what the code does: field numbers, enum values, error codes and test vectors."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor

from bookgate.ledger import errors
from bookgate.ledger.digest import digest_for, ledger_master_key, mac_key
from bookgate.ledger.metadata import DigestType
from bookgate.protos.bookkeeper.common.v1 import status_pb2
from bookgate.protos.bookkeeper.gateway.v1 import (
    ledger_metadata_service_pb2,
    registration_service_pb2,
    replication_service_pb2,
    service_discovery_pb2,
)
from bookgate.protos.bookkeeper.proto import bookkeeper_protocol_pb2, data_formats_pb2, db_ledger_storage_pb2
from tests.simulation.mutations.table import MUTATIONS

PAGES = Path(__file__).parents[2] / "docs" / "protocol"
REPORTED = Path(__file__).parents[1] / "simulation" / "MUTATIONS.md"
FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        bookkeeper_protocol_pb2,
        data_formats_pb2,
        db_ledger_storage_pb2,
        status_pb2,
        ledger_metadata_service_pb2,
        service_discovery_pb2,
        registration_service_pb2,
        replication_service_pb2,
    )
]
_BEYOND_BOOKKEEPER = {
    "ledgerScopeId",
    "ledgerTerm",
    "lastAddFullyReplicated",
    "truncate",
    "lastAddConfirmed",
    "fencedInTerm",
    "following",
}
_IN_TEXT = re.compile(r"(\d+) `(\w+)`")


def tables(page: str) -> Iterator[list[list[str]]]:
    """The cells of each table of a page, row by row, without the line below the head."""
    for block in re.findall(r"(?:^\|.*\n)+", (PAGES / page).read_text(), re.MULTILINE):
        rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def messages() -> Iterator[Any]:
    """Every message, nested ones included."""
    waiting = [message for file in FILES for message in file.message_types_by_name.values()]
    while waiting:
        message = waiting.pop()
        yield message
        waiting += message.nested_types


def fields_of(message: Any) -> dict[int, str]:
    """BookKeeper's own fields: others are told once for all, in scoped-ledgers.md and unbounded-ledgers.md."""
    return {field.number: field.name for field in message.fields if field.name not in _BEYOND_BOOKKEEPER}


FIELDS = {message.name: fields_of(message) for message in messages()}


def test_tables_of_fields_are_those_of_a_message() -> None:
    found = 0
    for page in ("wire.md", "metadata.md", "gateway.md"):
        for head, *rows in tables(page):
            if head[:2] == ["no.", "field"]:
                told = {int(row[0]): row[1] for row in rows}
                assert told in FIELDS.values(), f"{page}: no message has the fields {told}"
                found += 1
    assert found >= 10


def test_fields_that_stand_beside_their_message() -> None:
    """`| ReadLacResponse | 1 `status` R; 2 `ledgerId` int64 R; … |`, and the same in a sentence."""
    found = 0
    for line in [line for page in PAGES.glob("*.md") for line in page.read_text().splitlines()]:
        if match := re.match(r"\| (\w+) \| (\d+ `\w+`.*)\|", line):
            assert {int(number): name for number, name in _IN_TEXT.findall(match[2])} == FIELDS[match[1]], match[1]
            found += 1
    assert found >= 12
    storage = " ".join((PAGES / "storage.md").read_text().split())
    sentence = storage[storage.index("`LedgerData` (proto2") :].split(". A plain row")[0]
    assert {int(number): name for number, name in _IN_TEXT.findall(sentence)} == FIELDS["LedgerData"]


@pytest.mark.parametrize(
    ("page", "head", "enum"),
    [
        ("wire.md", "ProtocolVersion", "ProtocolVersion"),
        ("wire.md", "OperationType", "OperationType"),
        ("wire.md", "StatusCode", "StatusCode"),
        ("gateway.md", "code", "StatusCode"),
        ("gateway.md", "state", "RegistrationState"),
    ],
)
def test_enums_have_their_numbers(page: str, head: str, enum: str) -> None:
    table = next(table for table in tables(page) if table[0][0] == head)
    told = dict(
        zip((name for row in table[1:] for name in row[0].split(", ")), _numbers(table[1:]), strict=True),
    )
    candidates = [file.enum_types_by_name[enum] for file in FILES if enum in file.enum_types_by_name]
    values = [{_plain(value.name): value.number for value in each.values} for each in candidates]
    assert any(told.items() <= each.items() and len(told) >= len(each) - 1 for each in values), told


def _numbers(rows: list[list[str]]) -> Iterator[int]:
    return (int(number) for row in rows for number in row[1].split(", "))


def _plain(name: str) -> str:
    return name.removeprefix("REGISTRATION_STATE_")


def test_error_codes_are_those_of_the_exceptions() -> None:
    table = next(table for table in tables("client-protocol.md") if table[0][:2] == ["code", "name"])
    told = {row[1]: int(row[0]) for row in table[1:]}
    ours = {
        name.removesuffix("Exception"): value.code
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.BKException) and "code" in vars(value)
    }
    named = {name: code for name, code in ours.items() if name in told}
    assert len(named) >= 25
    assert named == {name: told[name] for name in named}
    assert {code for code in ours.values() if code != -999} <= set(told.values())


def test_vectors_of_the_entry_format() -> None:
    table = next(table for table in tables("entry-format.md") if table[0] == ["item", "hex"])
    told = {row[0]: row[1].replace(" ", "") for row in table[1:]}
    header, password = struct.pack(">qqqq", 1, 0, -1, 5), b"foobar"
    digests = {
        name: digest_for(kind, password).compute(header, b"hello").hex()
        for name, kind in (("CRC32", DigestType.CRC32), ("CRC32C", DigestType.CRC32C), ("MAC", DigestType.HMAC))
    }
    assert told == {
        "header": header.hex(),
        "master key": ledger_master_key(password).hex(),
        "MAC key": mac_key(password).hex(),
        **{f"{name} field": value for name, value in digests.items()},
    }
    page = (PAGES / "entry-format.md").read_text()
    assert ledger_master_key(b"").hex() in page
    for kind in (DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC):
        assert f"`{digest_for(kind, password).compute(struct.pack('>qq', 1, 5)).hex()}`" in page


def test_each_rule_of_unbounded_ledgers_names_planted_bugs_that_show_it() -> None:
    """The bugs are in the table of planted bugs, which says what must report each; none was missed."""
    planted = {mutation.name: mutation for mutation in MUTATIONS}
    rows = {line.split("|")[1].strip(): line for line in REPORTED.read_text().splitlines() if line.startswith("| ")}
    found = 0
    for head, *rules in tables("unbounded-ledgers.md"):
        if "why" in head or head[0] == "rule" or head[:2] == ["request", "condition"]:
            assert head[-1] == "shown by", f"nothing shows the rules of the table {head}"
        if head[-1] != "shown by":
            continue
        for *rule, names in rules:
            found += 1
            assert names, f"nothing shows the rule {rule[0]}"
            for name in names.split(", "):
                assert name in planted, f"no planted bug is called {name}: {rule[0]}"
                assert planted[name].expected or planted[name].tests, f"nothing is expected of {name}"
                assert "**missed**" not in rows[name], f"nothing noticed {name} when it was planted last"
    assert found >= 55
