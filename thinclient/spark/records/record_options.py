"""Options of a read of a stream (`stream`). Source: docs/spark.md#streams-of-records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.streams import DEFAULT_SCOPE
from bookgate.runtime.settings import nearest_key
from bookgate.thinclient.spark.options import values
from bookgate.thinclient.spark.options.read_options import (
    DEFAULT_CLIENT_SETTINGS,
    ClientSettings,
    OptionError,
    connection_options,
    parsed,
)
from bookgate.thinclient.streams.places import From, Start, place_of

STREAM = "stream"
NAMES = (
    STREAM,
    "gateways",
    "scopeId",
    "password",
    "startingOffsets",
    "endingOffsets",
    "maxEntriesPerPartition",
    "maxEntriesPerTrigger",
    "readTimeoutMs",
    "prefetchEntries",
    "client.<setting>",
)
_LOWER_NAMES = frozenset(name.lower() for name in NAMES)
DEFAULT_ENTRIES_PER_PARTITION = 10_000


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The options of a read of one stream, checked. Plain values: sent to the executors unchanged."""

    gateways: str
    stream: str
    scope_id: int = DEFAULT_SCOPE
    password: bytes = b""
    start: From = Start.EARLIEST
    end: From = Start.LATEST
    max_entries_per_partition: int = DEFAULT_ENTRIES_PER_PARTITION
    max_entries_per_trigger: int | None = None
    client_settings: ClientSettings = DEFAULT_CLIENT_SETTINGS

    def __repr__(self) -> str:
        return f"RecordOptions({self.stream} through {self.gateways})"


def reads_stream(raw: Mapping[str, str]) -> bool:
    """Whether these are the options of a read of a stream."""
    return any(name.lower() == STREAM for name in raw)


def parse_record_options(raw: Mapping[str, str]) -> RecordOptions:
    """Checks the options of one read. Raises OptionError."""
    given = {name.lower(): value for name, value in raw.items()}
    for name in given:
        if name not in _LOWER_NAMES and not name.startswith("client."):
            meant = nearest_key(name, NAMES)
            hint = f"did you mean {meant}?" if meant else f"it has {', '.join(NAMES)}"
            raise OptionError(f"unknown option {name!r} of a read of a stream; {hint}")
    gateways, settings = connection_options(given)
    return RecordOptions(
        gateways,
        given[STREAM],
        parsed(given, "scopeId", values.scope_id, DEFAULT_SCOPE),
        given.get("password", "").encode(),
        parsed(given, "startingOffsets", _place, None) or Start.EARLIEST,
        parsed(given, "endingOffsets", _place, None) or Start.LATEST,
        parsed(given, "maxEntriesPerPartition", values.positive, DEFAULT_ENTRIES_PER_PARTITION),
        parsed(given, "maxEntriesPerTrigger", values.positive, None),
        settings,
    )


def _place(text: str) -> From:
    try:
        return place_of(text.strip())
    except IncorrectParameterException as error:
        raise ValueError(str(error)) from None
