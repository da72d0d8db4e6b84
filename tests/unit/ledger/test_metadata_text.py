"""Metadata in text form: read as protobuf reads it, and fast where they are large."""

from __future__ import annotations

import random
import time

import pytest
from google.protobuf import text_format

from bookgate.ledger.errors import MetadataFormatException
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode
from bookgate.ledger.metadata_text import parse_text
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

_CHARACTERS = "\"'\\\n\tab{}:#\x7fé€"
_LONGEST_SECONDS = 0.3
"""On a busy machine; protobuf's parser takes twice as long on a quiet one."""


def _read_by_protobuf(text: str) -> LedgerMetadataFormat | None:
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(text, message, allow_unknown_field=True)
    except (text_format.ParseError, ValueError):
        return None
    return message


def _read(text: str) -> LedgerMetadataFormat | None:
    try:
        return parse_text(text.encode())
    except MetadataFormatException:
        return None


def _some_ledger(random_source: random.Random) -> LedgerMetadata:
    def text() -> str:
        return "".join(random_source.choices(_CHARACTERS, k=random_source.randrange(8)))

    size = random_source.randrange(1, 4)
    ensembles = [tuple(text() for _ in range(size)) for _ in range(random_source.randrange(1, 4))]
    return LedgerMetadata(
        size,
        1,
        1,
        tuple(Fragment(10 * number, ensemble) for number, ensemble in enumerate(ensembles)),
        password=random_source.randbytes(random_source.randrange(20)),
        ctime_ms=random_source.choice([None, 1, 1 << 50]),
        custom_metadata={text(): random_source.randbytes(random_source.randrange(20)) for _ in range(2)},
        format_version=2,
    )


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_text_is_read_as_protobuf_reads_it_also_where_it_is_damaged() -> None:
    random_source = random.Random(7)
    for _ in range(300):
        ledger = _some_ledger(random_source)
        stored = encode(ledger)
        assert decode(stored) == ledger
        text = stored.decode().partition("\n")[2]
        assert _read(text) == _read_by_protobuf(text)
        damaged = list(text)
        for _ in range(2):
            damaged[random_source.randrange(len(damaged))] = random_source.choice('"\n{}a1 \\')
        assert _read("".join(damaged)) == _read_by_protobuf("".join(damaged))


@pytest.mark.parametrize(
    "text",
    [
        'segment { firstEntryId: 0 ensembleMember: "a" } quorumSize: 1 ensembleSize: 1 length: 0 state: OPEN',
        'other {\nsegment {\n  ensembleMember: "a"\n  firstEntryId: 0\n}\n}\nquorumSize: 1\n',
        'segment <\n  ensembleMember: "a"\n  firstEntryId: 0\n>\nunknown: 7\n',
        "# a comment\nquorumSize: 0x10\npassword: 'a' \"b\"\n",
    ],
)
def test_text_in_another_layout_is_read_too(text: str) -> None:
    assert _read(text) == _read_by_protobuf(text) is not None


@pytest.mark.parametrize("end", ["", "  firstEntryId: 0\n", '  ensembleMember: "\n  firstEntryId: 0\n}\n'])
def test_a_damaged_ensemble_is_refused(end: str) -> None:
    with pytest.raises(MetadataFormatException):
        parse_text(('segment {\n  ensembleMember: "a"\n' + end).encode())


def test_a_large_ledger_does_not_take_seconds() -> None:
    """As large as ZooKeeper takes: 40,000 bookies, or a quarter of a million escaped bytes."""
    wide = LedgerMetadata(40_000, 1, 1, (Fragment(0, ("ab",) * 40_000),), format_version=2)
    escaped = LedgerMetadata(
        1, 1, 1, (Fragment(0, ("a",)),), custom_metadata={"x": b"\xff" * 250_000}, password=b"p", format_version=2
    )
    for ledger in (wide, escaped):
        began = time.process_time()
        assert decode(encode(ledger)) == ledger
        assert time.process_time() - began < _LONGEST_SECONDS


def test_what_only_looks_like_a_fragment_is_none() -> None:
    """Within custom metadata, and with a number in octal digits or in digits of another script."""
    plain = (
        'quorumSize: 1\nensembleSize: 1\nlength: 0\nlastEntryId: -1\nstate: OPEN\nsegment {\n  ensembleMember: "a"\n'
    )
    fragment = 'segment {\n  ensembleMember: "b"\n  firstEntryId: 5\n}\n'
    texts = [f"{plain}  firstEntryId: {number}\n}}\n" for number in ("0", "010", "٣", "-5")]
    texts.append(f'{texts[0]}customMetadata {{\n{fragment}  key: "k"\n  value: "v"\n}}\n')
    for text in texts:
        assert _read(text) == _read_by_protobuf(text), text
