"""Options of reads and writes of streams (`stream`). Source: docs/spark.md#streams-of-records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.streams import DEFAULT_SCOPE
from bookgate.runtime.settings import nearest_key
from bookgate.thinclient.spark.options import values
from bookgate.thinclient.spark.options.read_options import (
    DEFAULT_CLIENT_SETTINGS,
    SPARKS_OWN,
    ClientSettings,
    OptionError,
    PayloadAs,
    choice,
    connection_options,
    parsed,
)
from bookgate.thinclient.streams.places import From, Start, place_of

STREAM = "stream"
NAMES = (
    STREAM,
    "streamPartitions",
    "gateways",
    "scopeId",
    "password",
    "startingOffsets",
    "endingOffsets",
    "maxEntriesPerPartition",
    "maxEntriesPerTrigger",
    "includePayload",
    "payloadAs",
    "readTimeoutMs",
    "prefetchEntries",
    "client.<setting>",
)
WRITE_NAMES = (STREAM, "streamPartitions", "gateways", "scopeId", "password", "writeId", "client.<setting>")
_SPARKS_OWN = frozenset(name.lower() for name in SPARKS_OWN)
DEFAULT_ENTRIES_PER_PARTITION = 10_000
MAX_WRITE_ID_BYTES = 100
"""With a partition it is the name of a producer."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of a read of one stream or a set of them, checked. Plain values: sent to the executors unchanged."""

    gateways: str
    stream: str
    scope_id: int = DEFAULT_SCOPE
    password: bytes = b""
    start: From = Start.EARLIEST
    end: From = Start.LATEST
    max_entries_per_partition: int = DEFAULT_ENTRIES_PER_PARTITION
    max_entries_per_trigger: int | None = None
    include_payload: bool = True
    payload_as: PayloadAs = PayloadAs.BINARY
    partitions: int | None = None
    """So many streams, as those of a sink with this option; None: one stream, which has the name itself."""
    client_settings: ClientSettings = DEFAULT_CLIENT_SETTINGS

    def __repr__(self) -> str:
        return f"RecordOptions({self.stream} through {self.gateways})"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams, by partition."""
        return _streams(self.stream, self.partitions)


@dataclass(frozen=True, slots=True)
class RecordWriteOptions:
    """The options of a write to streams, checked. Plain values: sent to the executors unchanged."""

    gateways: str
    stream: str
    partitions: int | None = None
    """One stream for each partition of the frame, so many; None: one stream, which has the name itself."""
    scope_id: int = DEFAULT_SCOPE
    password: bytes = b""
    write_id: str | None = None
    client_settings: ClientSettings = DEFAULT_CLIENT_SETTINGS

    def __repr__(self) -> str:
        return f"RecordWriteOptions({self.stream} through {self.gateways})"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams, by partition."""
        return _streams(self.stream, self.partitions)


def _streams(name: str, partitions: int | None) -> tuple[str, ...]:
    return (name,) if partitions is None else tuple(f"{name}-{partition}" for partition in range(partitions))


def names_stream(raw: Mapping[str, str]) -> bool:
    """Whether these are the options of a read of a stream, or of a write to one."""
    return any(name.lower() == STREAM for name in raw)


def parse_record_options(raw: Mapping[str, str]) -> RecordOptions:
    """Checks the options of one read. Raises OptionError."""
    given = _given(raw, NAMES, "a read of a stream")
    gateways, settings = connection_options(given)
    partitions = parsed(given, "streamPartitions", values.positive, None)
    place = _place if partitions is None else _place_in_each
    return RecordOptions(
        gateways,
        given[STREAM],
        parsed(given, "scopeId", values.scope_id, DEFAULT_SCOPE),
        given.get("password", "").encode(),
        parsed(given, "startingOffsets", place, None) or Start.EARLIEST,
        parsed(given, "endingOffsets", place, None) or Start.LATEST,
        parsed(given, "maxEntriesPerPartition", values.positive, DEFAULT_ENTRIES_PER_PARTITION),
        parsed(given, "maxEntriesPerTrigger", values.positive, None),
        parsed(given, "includePayload", values.boolean, True),
        choice(given, "payloadAs", PayloadAs, PayloadAs.BINARY),
        partitions,
        settings,
    )


def parse_record_write_options(raw: Mapping[str, str]) -> RecordWriteOptions:
    """Checks the options of one write. Raises OptionError."""
    given = _given({name: raw[name] for name in raw if name.lower() not in _SPARKS_OWN}, WRITE_NAMES, "a stream's sink")
    write_id = parsed(given, "writeId", values.write_id, None)
    if write_id is not None and len(write_id.encode()) > MAX_WRITE_ID_BYTES:
        raise OptionError(f"option writeId: has at most {MAX_WRITE_ID_BYTES} bytes")
    gateways, settings = connection_options(given)
    return RecordWriteOptions(
        gateways,
        given[STREAM],
        parsed(given, "streamPartitions", values.positive, None),
        parsed(given, "scopeId", values.scope_id, DEFAULT_SCOPE),
        given.get("password", "").encode(),
        write_id,
        settings,
    )


def _given(raw: Mapping[str, str], names: Sequence[str], what: str) -> dict[str, str]:
    """The options, names in lower case. Raises OptionError for an unknown one."""
    given = {name.lower(): value for name, value in raw.items()}
    known = {name.lower() for name in names}
    for name in given:
        if name not in known and not name.startswith("client."):
            meant = nearest_key(name, names)
            hint = f"did you mean {meant}?" if meant else f"it has {', '.join(names)}"
            raise OptionError(f"unknown option {name!r} of {what}; {hint}")
    return given


def _place(text: str) -> From:
    try:
        return place_of(text.strip())
    except IncorrectParameterException as error:
        raise ValueError(str(error)) from None


def _place_in_each(text: str) -> From:
    found = _place(text)
    if isinstance(found, RecordPosition):
        raise ValueError("each of the streams has entries of its own: give earliest, latest or a time with its zone")
    return found
