"""The values of auto-recovery as the metadata store holds them: marks, locks, votes, times of checks.

A mark says that a ledger needs repair, and names the bookies whose copies are missing. A lock says that one process
works on it; a vote is a candidate for auditor. The bytes are BookKeeper's, so that its auditors and workers and these
share one store. Fields that a later version added to a mark are kept when it is rewritten.
Source: docs/protocol/auto-recovery.md#contents, docs/protocol/auto-recovery.md#tree.

Not its job: how a store keeps them (`replication_store`), and what to repair.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.ledger.ledger_id import MAX_UNSCOPED, is_number
from bookgate.ledger.protobuf_text import quoted, top_level_fields
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
    UnderreplicatedLedgerFormat,
)

M = TypeVar("M", bound=Message)

MOST_DELAY_SECONDS = 2**31 - 1
"""BookKeeper reads the delay of lost bookies as a number of 32 bits."""
LAYOUT = b'type: "BASIC"\nversion: 1\n'
"""The only layout of the marks' tree that there is."""

_MOST_NAMED = 64 * 1024
"""Characters of a mark's lines that name replicas: thousands."""

_MARK_FIELDS = {field.name for field in UnderreplicatedLedgerFormat.DESCRIPTOR.fields}
_MARK_NAME = re.compile(r"urL(\d{10,19})", re.ASCII)
_SCOPED_MARK_NAME = re.compile(r"urL([0-9a-f]{32})")


def _line_length(replica: str) -> int:
    return len('replica: ""\n') + len(replica)


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A mark: a ledger needs repair."""

    ledger_id: int
    """Its number."""
    replicas: tuple[str, ...] = ()
    """Bookies whose copies are missing; none: the ledger is only misplaced."""
    ctime_ms: int | None = None
    """When the ledger was first marked, in milliseconds since 1970; None if the marker told no time."""
    unknown_fields: tuple[str, ...] = ()
    """Fields that this version does not know, as text."""
    damaged: bytes | None = None
    """What is stored, where it can't be parsed. It is a mark all the same, which names nobody, and is kept as it is."""

    def __post_init__(self) -> None:
        check_markable(self.ledger_id)

    def with_replicas(self, replicas: Sequence[str], ctime_ms: int | None) -> UnderreplicatedLedger:
        """The mark after `replicas` were marked, too. The time of the first mark stays: it tells the age.

        Names beyond `_MOST_NAMED` are left out: a client may write a ledger with any number of bookies. Whoever works
        on a mark looks at the whole ledger.
        """
        if self.damaged is not None:
            return self
        named = dict.fromkeys(self.replicas)
        size = sum(map(_line_length, named))
        for replica in replicas:
            if replica not in named and (not named or size + _line_length(replica) <= _MOST_NAMED):
                named[replica] = None
                size += _line_length(replica)
        return replace(self, replicas=tuple(named), ctime_ms=ctime_ms if self.ctime_ms is None else self.ctime_ms)

    def encode(self) -> bytes:
        """The bytes of the mark, as BookKeeper writes them."""
        if self.damaged is not None:
            return self.damaged
        lines = [f"replica: {quoted(replica)}" for replica in self.replicas]
        if self.ctime_ms is not None:
            lines.append(f"ctime: {self.ctime_ms}")
        return "".join(f"{line}\n" for line in (*lines, *self.unknown_fields)).encode()

    @classmethod
    def decode(cls, ledger_id: int, content: bytes) -> UnderreplicatedLedger:
        """Parses a mark; one that can't be parsed must not keep others from being seen, so it is `damaged`."""
        try:
            text = content.decode()
            message = _parse_text(text, UnderreplicatedLedgerFormat())
            unknown = tuple(field for name, field in top_level_fields(text) if name not in _MARK_FIELDS)
        except ValueError:
            return cls(ledger_id, damaged=content)
        ctime = message.ctime if message.HasField("ctime") else None
        return cls(ledger_id, tuple(message.replica), ctime, unknown)


def check_markable(number: int) -> int:
    """Returns the number. Raises IncorrectParameterException for one that no ledger has."""
    if not is_number(number):
        raise IncorrectParameterException(
            f"ledger {number} can't be marked: without a scope, ids are from 0 to 2**63 - 1, with one they are the "
            "128 bits as one number"
        )
    return number


def mark_name(number: int) -> str:
    """Name of a ledger's mark, and of its lock: `urL` and its id, or its qualified name."""
    return f"urL{check_markable(number):010d}" if number <= MAX_UNSCOPED else f"urL{check_markable(number):032x}"


def mark_directories(number: int) -> tuple[str, ...]:
    """Names of the directories above a mark, from the top: four, or eight for a ledger with a scope."""
    digits = f"{check_markable(number):016x}" if number <= MAX_UNSCOPED else f"{check_markable(number):032x}"
    return tuple(digits[at : at + 4] for at in range(0, len(digits), 4))


def ledger_id_of_mark(name: str) -> int | None:
    """The number of the ledger in the name of a mark or lock; None for any other name."""
    if (scoped := _SCOPED_MARK_NAME.fullmatch(name)) is not None:
        number = int(scoped[1], 16)
        return number if number > MAX_UNSCOPED and is_number(number) else None
    found = _MARK_NAME.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= MAX_UNSCOPED else None


def encode_lock(holder: str) -> bytes:
    """Content of a lock: the host name of the process that holds it; empty if that is unknown."""
    return _with_bookie_id(holder)


def decode_lock(content: bytes) -> str:
    """The holder; empty if unknown. Raises MetadataFormatException."""
    return _message_of_text(content, LockDataFormat(), "a lock").bookieId


def encode_vote(voter: str) -> bytes:
    """Content of a vote: the candidate's bookie id."""
    return _with_bookie_id(voter)


def decode_vote(content: bytes) -> str:
    """The candidate. Raises MetadataFormatException."""
    return _message_of_text(content, AuditorVoteFormat(), "a vote").bookieId


def encode_delay(seconds: int) -> bytes:
    """Content of the delay. Raises IncorrectParameterException for one that BookKeeper could not read."""
    if not 0 <= seconds <= MOST_DELAY_SECONDS:
        raise IncorrectParameterException(f"a delay of {seconds} s is none: it is 0 to {MOST_DELAY_SECONDS}")
    return b"%d" % seconds


def decode_delay(content: bytes) -> int:
    """The delay in seconds. Raises MetadataFormatException."""
    text = content.strip()
    if not text.isdigit():
        raise MetadataFormatException(f"the delay of lost bookies is {content[:40]!r}, which is no number of seconds")
    return int(text)


def check_layout(content: bytes) -> None:
    """Raises MetadataFormatException unless this is the layout that Bookgate knows."""
    layout = _message_of_text(content, LedgerRereplicationLayoutFormat(), "the layout of auto-recovery")
    if (layout.type, layout.version) != ("BASIC", 1):
        raise MetadataFormatException(
            f"auto-recovery has layout {layout.type!r} version {layout.version} in this cluster; known is 'BASIC' 1"
        )


class PeriodicCheck(enum.Enum):
    """The auditor's periodic checks of which the store keeps when they last ended. The value names them there."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT_POLICY = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"

    def encode(self, ctime_ms: int) -> bytes:
        kind, field = _CHECK_FORMATS[self]
        return kind(**{field: ctime_ms}).SerializeToString()

    def decode(self, content: bytes) -> int | None:
        """When the check last ended, in milliseconds since 1970; None if unknown. Raises MetadataFormatException."""
        kind, field = _CHECK_FORMATS[self]
        try:
            message = kind.FromString(content)
        except DecodeError as error:
            raise MetadataFormatException(f"{self.value} can't be read: {error}") from error
        return getattr(message, field) if message.HasField(field) else None


_CHECK_FORMATS: dict[PeriodicCheck, tuple[type[Message], str]] = {
    PeriodicCheck.ALL_LEDGERS: (CheckAllLedgersFormat, "checkAllLedgersCTime"),
    PeriodicCheck.PLACEMENT_POLICY: (PlacementPolicyCheckFormat, "placementPolicyCheckCTime"),
    PeriodicCheck.REPLICAS: (ReplicasCheckFormat, "replicasCheckCTime"),
}


def _with_bookie_id(bookie_id: str) -> bytes:
    return f"bookieId: {quoted(bookie_id)}\n".encode()


def _message_of_text(content: bytes, message: M, what: str) -> M:
    try:
        parsed = _parse_text(content.decode(), message)
    except ValueError as error:
        raise MetadataFormatException(f"{what} can't be read: {error}") from error
    if not parsed.IsInitialized():
        raise MetadataFormatException(f"{what} lacks a field: {content[:100]!r}")
    return parsed


def _parse_text(text: str, message: M) -> M:
    """Raises ValueError."""
    try:
        return text_format.Parse(text, message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error
