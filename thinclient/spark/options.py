"""Options of the Spark source: from the strings that Spark hands over to one checked value.

Every option is checked here and nowhere else, before anything is read: an unknown name or a value that can't be used
raises OptionError with the option's name and what it takes. Spark hands option names over in lower case, so names
compare without case, and so do the keys of `customMetadata.<key>`. `client.<setting>` sets what `ClientConfig` has
(timeouts, TLS, authentication, protocol), for the driver and the executors.

Source: spark page, the table of options; those of streaming and of the sinks are not here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from ledger.errors import IncorrectParameterException
from ledger.metadata import DigestType
from thinclient.config import ClientConfig, load_settings

GATEWAYS_VARIABLE = "BOOKGATE_GATEWAYS"
DEFAULT_MAX_BYTES_PER_PARTITION = 128 * 1024 * 1024

_CUSTOM_METADATA = "custommetadata."
_CLIENT = "client."
_RANGE = re.compile(r"\s*(-?\d+)\s*-\s*(-?\d+)?\s*")
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_TRUE_AND_FALSE = {"true": True, "false": False}
_INT64 = 1 << 64

T = TypeVar("T")


class OptionError(ValueError):
    """An option of the source that is unknown, missing or out of range; the message names it."""


class Table(Enum):
    """What the rows are: entries, ledgers or bookies."""

    ENTRIES = "entries"
    LEDGERS = "ledgers"
    BOOKIES = "bookies"


class ReadMode(Enum):
    """How far an open ledger is read. Only RECOVER fences."""

    CONFIRMED = "confirmed"
    """Up to the last add confirmed, without disturbing the writer."""
    RECOVER = "recover"
    """The ledger is recovered and closed first; its writer loses it."""


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Ledger ids from `first` to `last`, both included; `last` None has no end."""

    first: int
    last: int | None


ClientSettings = tuple[tuple[str, str], ...]
"""Settings of the client (`ClientConfig`) with their values, in order of name."""


@dataclass(frozen=True, slots=True)
class Options:
    """The source's options, checked. Plain values: goes to the executors as it is.

    `ledger_ids` ascends. At most one of `ledger_ids`, `ledger_range` and `custom_metadata` is set; none means every
    ledger of the scope.
    Offsets are by ledger id: the first entry to read, and the first entry not to read any more.
    """

    gateways: str
    table: Table = Table.ENTRIES
    ledger_ids: tuple[int, ...] | None = None
    ledger_range: LedgerRange | None = None
    custom_metadata: Mapping[str, bytes] | None = None
    scope_id: int = 0
    password: bytes = b""
    digest_type: DigestType | None = None
    starting_offsets: Mapping[int, int] | None = None
    ending_offsets: Mapping[int, int] | None = None
    read_mode: ReadMode = ReadMode.CONFIRMED
    min_partitions: int | None = None
    max_entries_per_partition: int | None = None
    max_bytes_per_partition: int = DEFAULT_MAX_BYTES_PER_PARTITION
    include_payload: bool = True
    fail_on_data_loss: bool = True
    client_settings: ClientSettings = ()

    def __repr__(self) -> str:
        return f"Options({self.table.value} through {self.gateways})"


def parse_options(raw: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Options:
    """Checks the options of one read. Raises OptionError."""
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_unknown(given)
    options = Options(
        gateways=_gateways(given, os.environ if environment is None else environment),
        table=_choice(given, "table", Table, Table.ENTRIES),
        ledger_ids=_parsed(given, "ledgerIds", _ledger_ids, None),
        ledger_range=_parsed(given, "ledgerRange", _ledger_range, None),
        custom_metadata=_custom_metadata(given),
        scope_id=_parsed(given, "scopeId", _scope_id, 0),
        password=given.get("password", "").encode(),
        digest_type=_digest_type(given),
        starting_offsets=_offsets(given, "startingOffsets", "earliest"),
        ending_offsets=_offsets(given, "endingOffsets", "latest"),
        read_mode=_choice(given, "readMode", ReadMode, ReadMode.CONFIRMED),
        min_partitions=_parsed(given, "minPartitions", _positive, None),
        max_entries_per_partition=_parsed(given, "maxEntriesPerPartition", _positive, None),
        max_bytes_per_partition=_parsed(given, "maxBytesPerPartition", _size, DEFAULT_MAX_BYTES_PER_PARTITION),
        include_payload=_parsed(given, "includePayload", _boolean, True),
        fail_on_data_loss=_parsed(given, "failOnDataLoss", _boolean, True),
        client_settings=_client_settings(given),
    )
    _refuse_contradictions(options, given)
    return options


NAMES = (
    "table",
    "gateways",
    "ledgerIds",
    "ledgerRange",
    "customMetadata.<key>",
    "scopeId",
    "password",
    "digestType",
    "startingOffsets",
    "endingOffsets",
    "readMode",
    "minPartitions",
    "maxEntriesPerPartition",
    "maxBytesPerPartition",
    "includePayload",
    "failOnDataLoss",
    "client.<setting>",
)
_LOWER_NAMES = frozenset(name.lower() for name in NAMES if "<" not in name)
_ENTRIES_ONLY = (
    "digestType",
    "startingOffsets",
    "endingOffsets",
    "readMode",
    "minPartitions",
    "maxEntriesPerPartition",
    "maxBytesPerPartition",
    "includePayload",
)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in _LOWER_NAMES and not name.startswith((_CUSTOM_METADATA, _CLIENT)):
            raise OptionError(f"unknown option {name!r} of the bookkeeper source; it has {', '.join(NAMES)}")


def _refuse_contradictions(options: Options, given: Mapping[str, str]) -> None:
    selectors = {
        "ledgerIds": options.ledger_ids,
        "ledgerRange": options.ledger_range,
        "customMetadata.<key>": options.custom_metadata,
    }
    chosen = [name for name, value in selectors.items() if value is not None]
    if len(chosen) > 1:
        raise OptionError(f"options {' and '.join(chosen)} exclude each other: give one, or none for all ledgers")
    if options.table is Table.BOOKIES and chosen:
        raise OptionError(f"option {chosen[0]} selects ledgers; table 'bookies' has none")
    if options.table is Table.ENTRIES:
        return
    for name in _ENTRIES_ONLY:
        if name.lower() in given:
            raise OptionError(f"option {name} is for table 'entries'; this read is of table {options.table.value!r}")


def _parsed(given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T | None) -> T:
    """The option's value, or `default`; a ValueError of `parse` becomes an OptionError that names the option."""
    text = given.get(name.lower())
    if text is None:
        return default  # type: ignore[return-value]
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"option {name} is {text!r}: {error}") from None


def _gateways(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    gateways = given.get("gateways", "").strip() or environment.get(GATEWAYS_VARIABLE, "").strip()
    if not gateways:
        raise OptionError(
            f"option gateways is missing: give grpc://host:port,host:port, or set {GATEWAYS_VARIABLE} on the driver"
        )
    return gateways if "://" in gateways else f"grpc://{gateways}"


_E = TypeVar("_E", bound=Enum)


def _choice(given: Mapping[str, str], name: str, kind: type[_E], default: _E) -> _E:
    def parse(text: str) -> _E:
        for member in kind:
            if member.value == text.strip().lower():
                return member
        raise ValueError(f"it must be one of {', '.join(member.value for member in kind)}")

    return _parsed(given, name, parse, default)


def _digest_type(given: Mapping[str, str]) -> DigestType | None:
    def parse(text: str) -> DigestType:
        name = text.strip().upper()
        name = "HMAC" if name == "MAC" else name
        if name not in DigestType.__members__:
            raise ValueError(f"it must be one of {', '.join(DigestType.__members__)}")
        return DigestType[name]

    return _parsed(given, "digestType", parse, None)


def _custom_metadata(given: Mapping[str, str]) -> dict[str, bytes] | None:
    wanted = {
        name[len(_CUSTOM_METADATA) :]: value for name, value in given.items() if name.startswith(_CUSTOM_METADATA)
    }
    if "" in wanted:
        raise OptionError("option customMetadata. has no key: write customMetadata.<key>")
    return {key: value.encode() for key, value in wanted.items()} or None


def _client_settings(given: Mapping[str, str]) -> ClientSettings:
    """What `client.<setting>` options say, checked as the client's own settings are; files are for the executors."""
    settings = {name[len(_CLIENT) :]: value for name, value in given.items() if name.startswith(_CLIENT)}
    if "gateways" in settings:
        raise OptionError("option client.gateways: gateways have an option of their own, gateways")
    try:
        load_settings(ClientConfig, None, settings)
    except IncorrectParameterException as error:
        raise OptionError(f"options {', '.join(_CLIENT + name for name in sorted(settings))}: {error}") from None
    return tuple(sorted(settings.items()))


def _integer(text: str) -> int:
    try:
        return int(text.strip(), 0)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _int64(value: int) -> int:
    if not -_INT64 // 2 <= value < _INT64 // 2:
        raise ValueError("it does not fit 64 bits")
    return value


def _scope_id(text: str) -> int:
    """Signed or unsigned, decimal or 0x…: scope ids are any 64-bit pattern, carried signed."""
    value = _integer(text)
    return _int64(value - _INT64 if _INT64 // 2 <= value < _INT64 else value)


def _ledger_ids(text: str) -> tuple[int, ...]:
    ids = {_int64(_integer(part)) for part in text.split(",") if part.strip()}
    if not ids:
        raise ValueError("it must be ledger ids separated by commas")
    return tuple(sorted(ids))


def _ledger_range(text: str) -> LedgerRange:
    match = _RANGE.fullmatch(text)
    if not match:
        raise ValueError("it must be first-last, both included, or first- for all from there on")
    first, last = _int64(int(match[1])), None if match[2] is None else _int64(int(match[2]))
    if last is not None and last < first:
        raise ValueError("its end lies before its beginning")
    return LedgerRange(first, last)


def _positive(text: str) -> int:
    value = _integer(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def _size(text: str) -> int:
    """Bytes, with an optional k, m, g or t for powers of 1024."""
    match = _SIZE.fullmatch(text)
    if not match or int(match[1]) < 1:
        raise ValueError("it must be a number of bytes of 1 or more, such as 134217728 or 128m")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def _boolean(text: str) -> bool:
    value = _TRUE_AND_FALSE.get(text.strip().lower())
    if value is None:
        raise ValueError("it must be true or false")
    return value


def _offsets(given: Mapping[str, str], name: str, whole: str) -> dict[int, int] | None:
    def parse(text: str) -> dict[int, int] | None:
        if text.strip().lower() == whole:
            return None
        try:
            offsets = json.loads(text)
            return {int(ledger_id): _entry_id(entry_id) for ledger_id, entry_id in offsets.items()}
        except (ValueError, AttributeError):
            raise ValueError(f'it must be {whole!r} or JSON such as {{"<ledger id>": <entry id>}}') from None

    return _parsed(given, name, parse, None)


def _entry_id(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not an entry id")
    return value
