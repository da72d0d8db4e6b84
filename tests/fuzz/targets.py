"""Everything that reads bytes from a disk or a network, with good inputs, and what it may say of a bad one.

A reader returns normally or raises one of its declared errors. Anything else, and taking more memory than the input
explains, is a defect. Readers of files get a file system of one file in memory, which refuses to read more than is
there and a chunk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from bookgate.bookie.entry_logs import format as entry_log_format
from bookgate.bookie.entry_logs.log_file import LogScan, read_ledgers_map
from bookgate.bookie.entry_logs.reader import EntryLogReader
from bookgate.bookie.index.file_format import IndexHeader
from bookgate.bookie.index.file_index import LedgerCache
from bookgate.bookie.journal import format as journal_format
from bookgate.bookie.journal.format import JournalScan, LogMark
from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException
from bookgate.bookie.mode import status_files
from bookgate.bookie.system.files import FileSystem, StorageCorruptException
from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import decode_entry, decode_header, encode_entry
from bookgate.ledger.errors import BKException, IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import v2
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.frames import FrameDecoder, FrameError
from bookgate.ledger.wire.messages import InvalidRequest, Status
from bookgate.ledger.wire.v3 import ProtocolError, decode_request, decode_response, encode_response
from bookgate.protos.bookkeeper.proto.db_ledger_storage_pb2 import LedgerData
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource, decide
from bookgate.runtime.security.jwt import JwtRules, JwtVerifier, Keys, TokenRefused, parse_keys
from bookgate.runtime.security.policy import PolicyError, parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.static_tokens import parse_tokens
from tests.conformance.golden import rows
from tests.unit.bookie.storage.storage_support import KEY, lac_packet, packet

_READ_AHEAD = 1 << 20
_MAX_RECORDS = 100_000


@dataclass(frozen=True)
class Target:
    """`samples` are good inputs; `read` takes one, or raises one of `errors`; `longest` bounds an input, in bytes."""

    samples: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    longest: int = 8192


class OneFile(FileSystem):
    """The bytes under whatever name is opened."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: Path, flags: int) -> int:
        assert flags == os.O_RDONLY
        return 0

    def close(self, fd: int) -> None:
        pass

    def size(self, fd: int) -> int:
        return len(self._data)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        assert 0 <= size <= len(self._data) + _READ_AHEAD, f"asks for {size} bytes of a file of {len(self._data)}"
        assert offset >= 0
        return self._data[offset : offset + size]

    def data_extents(self, fd: int, start: int) -> Iterator[tuple[int, int]]:
        if start < len(self._data):
            yield start, len(self._data)


def _bounded(items: Iterator[object]) -> None:
    for count, _ in enumerate(items):
        assert count < _MAX_RECORDS, "does not end"


# Network


def _frames(data: bytes) -> None:
    """Received in pieces of a size that the input chooses."""
    decoder = FrameDecoder(1 << 20)
    step = 1 + zlib.crc32(data) % 1999
    received = 0
    for start in range(0, len(data), step):
        for whole in decoder.feed(data[start : start + step]):
            received += len(whole) + 4
        assert received + decoder.pending <= len(data)


def _v3_request(data: bytes) -> None:
    request = decode_request(data)
    encode_response(error_response(request, Status.EIO))


def _v2_request(data: bytes) -> None:
    request, version = v2.decode_request(data)
    status = request.status if isinstance(request, InvalidRequest) else Status.EIO
    v2.encode_response(v2.error_response(request, status), version)


def _golden(name: str, kind: str) -> list[bytes]:
    return [bytes.fromhex(row["frame"])[4:] for row in rows(name, kind) if "frame" in row]


def _captured(direction: str, proto: str = "v3") -> list[bytes]:
    found = (row for row in rows("wire_capture.jsonl") if row["dir"] == direction and row["proto"] == proto)
    return [bytes.fromhex(row["frame"]) for row in found]


def _streams() -> list[bytes]:
    """Whole frames behind one another, and a large one."""
    frames = _captured("c2b")
    return [b"".join(frames[start : start + 5]) for start in range(0, 40, 5)] + [struct.pack(">i", 5000) + bytes(5000)]


# Disk


def _journals() -> list[bytes]:
    records = [
        journal_format.encode_key(1, KEY),
        packet(1, 0, 300),
        packet(1, 1, 900),
        journal_format.encode_fence(1),
        journal_format.encode_explicit_lac(1, lac_packet(1, 1)),
    ]
    data = journal_format.encode_header()
    for record in records:
        data += journal_format.encode_records([record])
        data += journal_format.padding(len(data), 512)
    together = journal_format.encode_header() + journal_format.encode_records(records)
    version4 = b"BKLG" + struct.pack(">i", 4) + journal_format.encode_records(records[:4])
    return [data + bytes(1024), together, version4]


def _journal(data: bytes) -> None:
    files = OneFile(data)
    version, header_size = journal_format.decode_header(data[:8], "fuzz")
    scan = JournalScan(lambda size, offset: files.pread(0, size, offset), len(data), header_size, version, "fuzz")
    for count, record in enumerate(scan):
        assert count < _MAX_RECORDS
        if record.entry_id in (journal_format.LEDGER_KEY, journal_format.EXPLICIT_LAC):
            journal_format.meta_blob(record.payload)
    # Padding may announce more than there is, up to what its 4-byte length can say.
    assert header_size <= scan.end < len(data) + 2**31 + header_size


def _logs() -> list[bytes]:
    records = entry_log_format.encode_records([packet(1, 0), packet(1, 1, 700), packet(2, 0, 20)])
    end = entry_log_format.HEADER_SIZE + len(records)
    with_map = entry_log_format.encode_header(end, 2) + records + entry_log_format.encode_ledgers_map({1: 840, 2: 56})
    return [with_map, entry_log_format.encode_header() + records, with_map + b"\xf0" * 100 + bytes(100)]


def _log_scan(data: bytes) -> None:
    taken = 0
    for count, record in enumerate(LogScan(OneFile(data), 0, 0, "fuzz")):
        assert count < _MAX_RECORDS
        taken += len(record.packet) + 4
        assert record.ledger_id >= 0
    assert taken <= len(data)


def _log_map(data: bytes) -> None:
    found = read_ledgers_map(OneFile(data), 0)
    assert found is None or 16 * len(found) <= len(data)


def _log_read(data: bytes) -> None:
    """A record at the place that an intact index names."""
    reader = EntryLogReader(OneFile(data), [Path("/")], 2)
    try:
        found = reader.read(entry_log_format.location_of(0, 1024 + 4), 1, 0)
        assert found[:16] == struct.pack(">qq", 1, 0)
    finally:
        reader.close()


def _indexes() -> list[bytes]:
    slots = struct.pack(">40Q", *range(1 << 32, (1 << 32) + 40))
    version0 = b"BKLE" + struct.pack(">ii", 0, 20) + KEY + struct.pack(">i", 1)
    return [
        IndexHeader(KEY, False, None).encode() + slots.ljust(8192, b"\0"),
        IndexHeader(KEY, True, lac_packet(1, 3)).encode() + slots,
        version0.ljust(1024, b"\0") + slots,
    ]


def _index(data: bytes) -> None:
    cache = LedgerCache(OneFile(data), [Path("/")], 1 << 16)
    ledger = LedgerId.unscoped(1)
    found = cache.read_header(ledger)
    assert found is not None
    header, last = found
    ids = list(cache.entry_ids(ledger))
    assert (ids[-1] if ids else -1) == last
    if header is not None:
        assert len(header.master_key) + len(header.explicit_lac or b"") <= 1024
        header.encode()
    for entry_id in ids[:50]:
        assert cache.location(ledger, entry_id)


def _ledger_data(data: bytes) -> None:
    row = LedgerData()
    row.ParseFromString(data)
    assert len(row.masterKey) + len(row.explicitLac) <= len(data)


def _ledger_rows() -> list[bytes]:
    plain = LedgerData(exists=True, fenced=False, masterKey=KEY)
    full = LedgerData(exists=True, fenced=True, masterKey=KEY, explicitLac=lac_packet(1, 3), limbo=True)
    return [plain.SerializeToString(), full.SerializeToString()]


def _cookies() -> list[bytes]:
    cookie = Cookie.build("host:3181", [Path("/j")], [Path("/a"), Path("/b")], "instance", [Path("/i")])
    return [cookie.encode(), b"3\nhost:3181\n/j\n1\t/l\n"]


_DIGEST = digest_for(DigestType.CRC32C, b"secret")


def _entry(data: bytes) -> None:
    decode_header(data)
    decode_entry(_DIGEST, data, 1, 0)


_POLICY = b"""
[roles.etl]
actions = ["ledger.read", "discovery.*"]
[[bindings]]
principals = ["jwt:spark-*", "group:g", "tls:CN=etl"]
role = "etl"
scopes = ["0", "0x7"]
[[limits]]
principals = ["*"]
calls_per_second = 10.5
"""
_KEY_SET = (
    b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k","x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
)
_TOKEN = b"eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.eyJzdWIiOiJzcGFyayIsImV4cCI6OTk5OTk5OTk5OX0." + b"A" * 86
"""Signed by nobody: it is read as far as a token can be without being taken."""


def _policy(data: bytes) -> object:
    policy = parse_policy(data.decode("utf-8", "replace"))
    return decide(policy, Principal(Kind.JWT, "spark-1"), Action.LEDGER_READ, Resource(0))


class _Keys:
    problem = None

    def current(self) -> Keys:
        return parse_keys(_KEY_SET.decode())

    def missing(self) -> None:
        pass


def _bearer(data: bytes) -> None:
    """Never taken."""
    try:
        JwtVerifier(_Keys(), JwtRules("idp", "bookgate")).principal(data.decode("utf-8", "surrogateescape"))
    except TokenRefused:
        return
    raise AssertionError("a token without a signature was taken")


TARGETS: dict[str, Target] = {
    "policy": Target([_POLICY], _policy, (PolicyError,)),
    "static tokens": Target(
        [b"spark:" + b"0a" * 32 + b"\n# people\netl:" + b"f0" * 32 + b"\n"],
        lambda data: parse_tokens(data.decode("utf-8", "replace")),
        (IncorrectParameterException,),
    ),
    "key set": Target(
        [_KEY_SET], lambda data: parse_keys(data.decode("utf-8", "replace")), (IncorrectParameterException,)
    ),
    "JSON Web Token": Target([_TOKEN], _bearer, ()),
    "frames": Target(_streams(), _frames, (FrameError,)),
    "v3 request": Target(
        [*_golden("v3.jsonl", "request"), *(f[4:] for f in _captured("c2b"))], _v3_request, (ProtocolError,)
    ),
    "v3 response": Target(
        [*_golden("v3.jsonl", "response"), *(f[4:] for f in _captured("b2c"))], decode_response, (ProtocolError,)
    ),
    "v2 request": Target(_golden("v2.jsonl", "request"), _v2_request, (ProtocolError,)),
    "journal": Target(_journals(), _journal, (StorageCorruptException, ValueError)),
    "entry log scan": Target(_logs(), _log_scan, (StorageCorruptException,)),
    "entry log map": Target(_logs(), _log_map, ()),
    "entry log read": Target(_logs(), _log_read, (StorageCorruptException,)),
    "index file": Target(_indexes(), _index, (StorageCorruptException,), longest=12_000),
    "ledger row": Target(_ledger_rows(), _ledger_data, (DecodeError,)),
    "cookie": Target(_cookies(), Cookie.decode, (InvalidCookieException,)),
    "mark": Target([LogMark(5, 512).encode()], LogMark.decode, ()),
    "status file": Target([b"1,READ_ONLY,1700000000000,true\n"], status_files.decode, ()),
    "entry": Target(
        [encode_entry(_DIGEST, 1, 0, -1, size, bytes(size)) for size in (0, 7, 900)], _entry, (BKException,)
    ),
}
