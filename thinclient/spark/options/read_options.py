"""Options of the Spark source: parses Spark's strings into one checked value.

Every option is checked here and nowhere else, before anything is read: an unknown name or an invalid value raises
OptionError with the option's name and what it accepts. Spark passes option names in lower case, so names are compared
without case, and so are the keys of `customMetadata.<key>`. `client.<setting>` sets a setting of `ClientConfig`
(timeouts, TLS, authentication, protocol), for the driver and the executors; `readTimeoutMs` and `prefetchEntries` are
two of those settings under names known from other sources. The forms of values are in `values`.

Source: docs/spark.md#options; the sink's options are in `write_options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.settings import nearest_key, with_present_names
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.options import values
from bookgate.thinclient.spark.options.values import LedgerRange

GATEWAYS_VARIABLE = "BOOKGATE_GATEWAYS"
CONFIG_VARIABLE = "BOOKGATE_CONFIG"
"""Environment variable that names a TOML file with the client's settings, as for the commands."""
DEFAULT_MAX_BYTES_PER_PARTITION = 128 * 1024 * 1024
DEFAULT_NUM_RETRIES = 3

FROM_METADATA = "metadata"
"""Value of option `passwords`: each ledger's password is taken from its metadata."""

_CUSTOM_METADATA = "custommetadata."
_CLIENT = "client."

T = TypeVar("T")


class OptionError(ValueError):
    """An option of the source is unknown, missing or out of range; the message names it."""


class Table(Enum):
    """What the rows are: entries, ledgers or bookies; or the internal table of a job."""

    ENTRIES = "entries"
    LEDGERS = "ledgers"
    BOOKIES = "bookies"
    COPIES = "copies"
    """Of the job `audit`."""
    HELD_LEDGERS = "held-ledgers"
    """Of the job `orphans`."""

    @property
    def is_for_jobs(self) -> bool:
        """True for a table that is not a public interface: its columns change with its job."""
        return self in (Table.COPIES, Table.HELD_LEDGERS)


class ReadMode(Enum):
    """How far an open ledger is read. Only RECOVER fences."""

    CONFIRMED = "confirmed"
    """Up to the last add confirmed, without disturbing the writer."""
    RECOVER = "recover"
    """The ledger is recovered and closed first; its writer loses it."""


class PayloadAs(Enum):
    """The type of the column `payload`."""

    BINARY = "binary"
    STRING = "string"
    """UTF-8; invalid bytes are replaced by U+FFFD."""


ClientSettings = tuple[tuple[str, str], ...]
"""Settings of the client (`ClientConfig`) with their values, in order of name."""
DEFAULT_CLIENT_SETTINGS: ClientSettings = (("read_ahead_entries", "100"), ("read_timeout_seconds", "30.0"))


@dataclass(frozen=True, slots=True)
class Options:
    """The source's options, checked. Plain values: sent to the executors unchanged."""

    gateways: str
    table: Table = Table.ENTRIES
    ledger_ids: tuple[int, ...] | None = None
    ledger_range: LedgerRange | None = None
    custom_metadata: Mapping[str, bytes] | None = None
    scope_id: int = 0
    password: bytes = b""
    passwords: Mapping[int, bytes] | None = None
    """Passwords by ledger id; `password` is for the other ledgers."""
    passwords_from_metadata: bool = False
    """Each ledger is read with the password in its metadata."""
    digest_type: DigestType | None = None
    starting_offsets: Mapping[int, int] | None = None
    ending_offsets: Mapping[int, int] | None = None
    start_at_latest: bool = False
    starting_timestamp_ms: int | None = None
    read_mode: ReadMode = ReadMode.CONFIRMED
    min_partitions: int | None = None
    max_entries_per_partition: int | None = None
    max_bytes_per_partition: int = DEFAULT_MAX_BYTES_PER_PARTITION
    include_payload: bool = True
    payload_as: PayloadAs = PayloadAs.BINARY
    include_ledger_metadata: bool = False
    fail_on_data_loss: bool = True
    pushdown: bool = False
    num_retries: int = DEFAULT_NUM_RETRIES
    include_uncommitted: bool = False
    max_entries_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    client_settings: ClientSettings = DEFAULT_CLIENT_SETTINGS

    def password_of(self, record: LedgerRecord) -> bytes:
        """The password to open a ledger with."""
        if self.passwords_from_metadata:
            return record.metadata.known_password() or b""
        return (self.passwords or {}).get(record.ledger_id.low, self.password)

    def of_tasks(self) -> Options:
        """The same for tasks, whose slices carry the passwords of their own ledgers: without those of all others."""
        return replace(self, password=b"", passwords=None, passwords_from_metadata=True)

    def __repr__(self) -> str:
        return f"Options({self.table.value} through {self.gateways})"


def parse_options(raw: Mapping[str, str], environment: Mapping[str, str] | None = None) -> Options:
    """Checks the options of one read. Raises OptionError."""
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_unknown(given)
    gateways, client_settings = connection_options(given, environment)
    options = Options(
        gateways=gateways,
        table=choice(given, "table", Table, Table.ENTRIES, hidden=[each for each in Table if each.is_for_jobs]),
        ledger_ids=parsed(given, "ledgerIds", values.ledger_ids, None),
        ledger_range=parsed(given, "ledgerRange", values.ledger_range, None),
        custom_metadata=_custom_metadata(given),
        scope_id=parsed(given, "scopeId", values.scope_id, 0),
        password=given.get("password", "").encode(),
        passwords=_passwords(given),
        passwords_from_metadata=given.get("passwords", "").strip().lower() == FROM_METADATA,
        digest_type=parsed(given, "digestType", values.digest_type, None),
        starting_offsets=_offsets(given, "startingOffsets", ("earliest", "latest")),
        ending_offsets=_offsets(given, "endingOffsets", ("latest",)),
        start_at_latest=given.get("startingoffsets", "").strip().lower() == "latest",
        starting_timestamp_ms=parsed(given, "startingTimestamp", values.timestamp_ms, None),
        read_mode=choice(given, "readMode", ReadMode, ReadMode.CONFIRMED),
        min_partitions=parsed(given, "minPartitions", values.positive, None),
        max_entries_per_partition=parsed(given, "maxEntriesPerPartition", values.positive, None),
        max_bytes_per_partition=parsed(given, "maxBytesPerPartition", values.size, DEFAULT_MAX_BYTES_PER_PARTITION),
        include_payload=parsed(given, "includePayload", values.boolean, True),
        payload_as=choice(given, "payloadAs", PayloadAs, PayloadAs.BINARY),
        include_ledger_metadata=parsed(given, "includeLedgerMetadata", values.boolean, False),
        fail_on_data_loss=parsed(given, "failOnDataLoss", values.boolean, True),
        pushdown=parsed(given, "pushdown", values.boolean, False),
        num_retries=parsed(given, "numRetries", values.not_negative, DEFAULT_NUM_RETRIES),
        include_uncommitted=parsed(given, "includeUncommitted", values.boolean, False),
        max_entries_per_trigger=parsed(given, "maxEntriesPerTrigger", values.positive, None),
        max_bytes_per_trigger=parsed(given, "maxBytesPerTrigger", values.size, None),
        client_settings=client_settings,
    )
    _refuse_contradictions(options, given)
    return options


def connection_options(
    given: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> tuple[str, ClientSettings]:
    """The gateways and the client's settings; names of options in lower case. Raises OptionError."""
    return _gateways(given, os.environ if environment is None else environment), _client_settings(given)


NAMES = (
    "table",
    "gateways",
    "ledgerIds",
    "ledgerRange",
    "customMetadata.<key>",
    "scopeId",
    "password",
    "passwords",
    "digestType",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "readMode",
    "minPartitions",
    "maxEntriesPerPartition",
    "maxBytesPerPartition",
    "includePayload",
    "payloadAs",
    "includeLedgerMetadata",
    "failOnDataLoss",
    "pushdown",
    "readTimeoutMs",
    "numRetries",
    "prefetchEntries",
    "includeUncommitted",
    "maxEntriesPerTrigger",
    "maxBytesPerTrigger",
    "client.<setting>",
)
OF_STREAMS = ("maxEntriesPerTrigger", "maxBytesPerTrigger")
OF_WRITING = ("ensembleSize", "writeQuorum", "ackQuorum", "writeId")
"""Options of the sink, which `write_options` checks."""
SPARKS_OWN = ("checkpointLocation", "queryName")
"""Options that Spark itself adds for a streaming write."""
_LOWER_NAMES = frozenset(name.lower() for name in (*NAMES, *OF_WRITING, *SPARKS_OWN) if "<" not in name)
_ENTRIES_ONLY = (
    "digestType",
    "startingOffsets",
    "endingOffsets",
    "readMode",
    "minPartitions",
    "maxEntriesPerPartition",
    "maxBytesPerPartition",
    "includePayload",
    "payloadAs",
    "includeLedgerMetadata",
    "passwords",
    "readTimeoutMs",
    "numRetries",
    "prefetchEntries",
    "includeUncommitted",
    *OF_STREAMS,
)
_LEDGERS_ONLY = ("startingTimestamp", "pushdown", "failOnDataLoss")
"""Options for tables whose ledgers are selected, thus not for `bookies`."""
_ROWS = ("includePayload", "payloadAs", "includeLedgerMetadata")
"""Options that determine the columns of the rows."""
_NOT_OF_JOBS = {
    Table.COPIES: (
        "audit",
        ("readMode", "digestType", "passwords", *_ROWS, "includeUncommitted", "pushdown", *OF_STREAMS),
    ),
    Table.HELD_LEDGERS: ("orphans", (*_ENTRIES_ONLY, *_LEDGERS_ONLY)),
}
"""For each internal table: the job that reads it, and the options that do not apply, because the job looks at every
copy or at every ledger.
"""


def refuse(names: Iterable[str], raw: Mapping[str, str], why: str) -> None:
    """Raises OptionError for the first of these names that is present."""
    _refuse_those(tuple(names), {name.lower(): value for name, value in raw.items()}, why)


def ledger_options(raw: Mapping[str, str]) -> dict[str, str]:
    """Those options of a read of entries that table `ledgers` accepts, to list the same ledgers."""
    entries_only = {name.lower() for name in (*_ENTRIES_ONLY, "table")}
    return {name: value for name, value in raw.items() if name.lower() not in entries_only}


def without_selection(raw: Mapping[str, str]) -> dict[str, str]:
    """The options without those that select ledgers."""
    selecting = {"ledgerids", "ledgerrange", "startingtimestamp"}
    return {
        name: value
        for name, value in raw.items()
        if name.lower() not in selecting and not name.lower().startswith(_CUSTOM_METADATA)
    }


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in _LOWER_NAMES and not name.startswith((_CUSTOM_METADATA, _CLIENT)):
            meant = nearest_key(name, (*NAMES, *OF_WRITING))
            hint = f"did you mean {meant}?" if meant else f"it has {', '.join(NAMES)}"
            raise OptionError(f"unknown option {name!r} of the bookkeeper source; {hint}")


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
    if options.table in _NOT_OF_JOBS:
        _refuse_those_of_no_use(options.table, given, chosen)
    elif options.table is not Table.ENTRIES:
        _refuse_those(_ENTRIES_ONLY, given, f"is for table 'entries'; this read is of table {options.table.value!r}")
    if options.table is Table.BOOKIES:
        _refuse_those(_LEDGERS_ONLY, given, "is for tables of ledgers; this read is of table 'bookies'")


def _refuse_those_of_no_use(table: Table, given: Mapping[str, str], chosen: list[str]) -> None:
    job, names = _NOT_OF_JOBS[table]
    why = f"is of no use to the job {job}, and table {table.value!r} is for that job alone"
    if table is Table.HELD_LEDGERS and chosen:
        raise OptionError(f"option {chosen[0]} {why}")
    _refuse_those(names, given, why)


def _refuse_those(names: tuple[str, ...], given: Mapping[str, str], why: str) -> None:
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name} {why}")


def parsed(
    given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T | None, *, is_secret: bool = False
) -> T:
    """The option's value, or `default`; a ValueError of `parse` becomes an OptionError that names the option, and tells
    its value unless that is secret.
    """
    text = given.get(name.lower())
    if text is None:
        return default  # type: ignore[return-value]
    try:
        return parse(text)
    except ValueError as error:
        told = "can't be read" if is_secret else f"is {text!r}"
        raise OptionError(f"option {name} {told}: {error}") from None


def _gateways(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    gateways = given.get("gateways", "").strip() or environment.get(GATEWAYS_VARIABLE, "").strip()
    gateways = gateways or _configured_gateways(environment)
    if not gateways:
        raise OptionError(
            f"option gateways is missing: give grpc://host:port,host:port, or set {GATEWAYS_VARIABLE}, or gateways in "
            f"the file that {CONFIG_VARIABLE} names, on the driver"
        )
    return gateways if "://" in gateways else f"grpc://{gateways}"


def _configured_gateways(environment: Mapping[str, str]) -> str:
    file = environment.get(CONFIG_VARIABLE)
    if not file:
        return ""
    try:
        return ClientConfig.load(Path(file)).gateways.strip()
    except IncorrectParameterException as error:
        raise OptionError(f"option gateways is missing, and the file that {CONFIG_VARIABLE} names: {error}") from None


_E = TypeVar("_E", bound=Enum)


def choice(given: Mapping[str, str], name: str, kind: type[_E], default: _E, hidden: Sequence[_E] = ()) -> _E:
    """The member with the given value; error messages do not mention the `hidden` members. Raises OptionError."""

    def parse(text: str) -> _E:
        for member in kind:
            if member.value == text.strip().lower():
                return member
        raise ValueError(f"it must be one of {', '.join(each.value for each in kind if each not in hidden)}")

    return parsed(given, name, parse, default)


def _offsets(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> Mapping[int, int] | None:
    """Offsets parsed from JSON; None if the value is one of `words`, whose meaning is the caller's."""

    def parse(text: str) -> Mapping[int, int] | None:
        if text.strip().lower() in words:
            return None
        try:
            return values.offsets(text)
        except ValueError as error:
            raise ValueError(f"it must be {' or '.join(words)}, or {error}") from None

    return parsed(given, name, parse, None)


def _passwords(given: Mapping[str, str]) -> Mapping[int, bytes] | None:
    if given.get("passwords", "").strip().lower() == FROM_METADATA:
        if given.get("password"):
            raise OptionError(f"options password and passwords: {FROM_METADATA!r} exclude each other")
        return None
    return parsed(given, "passwords", values.passwords, None, is_secret=True)


def _custom_metadata(given: Mapping[str, str]) -> dict[str, bytes] | None:
    wanted = {
        name[len(_CUSTOM_METADATA) :]: value for name, value in given.items() if name.startswith(_CUSTOM_METADATA)
    }
    if "" in wanted:
        raise OptionError("option customMetadata. has no key: write customMetadata.<key>")
    return {key: value.encode() for key, value in wanted.items()} or None


def _client_settings(given: Mapping[str, str]) -> ClientSettings:
    """The `client.*` options, checked as settings of the client; files are looked up on the executors."""
    wanted = {name[len(_CLIENT) :]: value for name, value in given.items() if name.startswith(_CLIENT)}
    if "gateways" in wanted:
        raise OptionError("option client.gateways: gateways have an option of their own, gateways")
    try:
        ClientConfig.load(options=wanted)
    except IncorrectParameterException as error:
        raise OptionError(f"options {', '.join(_CLIENT + name for name in sorted(wanted))}: {error}") from None
    wanted, _ = with_present_names(ClientConfig, wanted)
    prefetch = parsed(given, "prefetchEntries", values.positive, None)
    timeout_ms = parsed(given, "readTimeoutMs", values.positive, None)
    named = {
        "read_ahead_entries": ("prefetchEntries", None if prefetch is None else str(prefetch)),
        "read_timeout_seconds": ("readTimeoutMs", None if timeout_ms is None else str(timeout_ms / 1000)),
    }
    settings = dict(DEFAULT_CLIENT_SETTINGS) | wanted
    for setting, (name, value) in named.items():
        if value is not None and setting in wanted:
            raise OptionError(f"options {name} and {_CLIENT}{setting} are the same setting: give one")
        if value is not None:
            settings[setting] = value
    return tuple(sorted(settings.items()))
