"""Options of the sink: parses Spark's strings into one checked value.

The options that source and sink share are checked by `options`; an option of the source is rejected by name, because it
would have no effect. Spark passes names in lower case, so keys of custom metadata are written in lower case. Source:
docs/spark.md#writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookgate.ledger.metadata import DigestType
from bookgate.thinclient.spark.commit_protocol import KEYS_BEGIN_WITH
from bookgate.thinclient.spark.options import values
from bookgate.thinclient.spark.options.read_options import (
    OF_WRITING,
    SPARKS_OWN,
    ClientSettings,
    OptionError,
    parse_options,
    parsed,
)

_FOR_BOTH = ("table", "gateways", "password", "digestType", "scopeId")
_PREFIXES = ("custommetadata.", "client.")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The sink's options, checked. Plain values: sent to the executors unchanged."""

    gateways: str
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: DigestType
    password: bytes
    custom_metadata: Mapping[str, bytes]
    write_id: str | None
    client_settings: ClientSettings
    scope_id: int = 0

    def __repr__(self) -> str:
        return f"WriteOptions(through {self.gateways})"


def parse_write_options(raw: Mapping[str, str], environment: Mapping[str, str] | None = None) -> WriteOptions:
    """Checks the options of one write. Raises OptionError."""
    given = {name.lower(): value for name, value in raw.items()}
    _refuse_those_of_reading(given)
    common = parse_options(raw, environment)
    return WriteOptions(
        common.gateways,
        *_sizes(given),
        digest_type=common.digest_type or DigestType.CRC32C,
        password=common.password,
        custom_metadata=_custom_metadata(common.custom_metadata or {}),
        write_id=parsed(given, "writeId", values.write_id, None),
        client_settings=common.client_settings,
        scope_id=common.scope_id,
    )


def _refuse_those_of_reading(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in (*OF_WRITING, *_FOR_BOTH, *SPARKS_OWN)}
    for name in given:
        if name not in known and not name.startswith(_PREFIXES):
            raise OptionError(
                f"option {name!r} is not one of the sink's; it has {', '.join((*_FOR_BOTH, *OF_WRITING))}, "
                "customMetadata.<key>, client.<setting>"
            )
    if given.get("table", "entries").strip().lower() != "entries":
        raise OptionError(f"option table is {given['table']!r}: only 'entries' can be written")


def _sizes(given: Mapping[str, str]) -> tuple[int, int, int]:
    """Ensemble size, write quorum and ack quorum. Missing ones follow from the given ones; without any: 3, 3, 2."""
    ensemble = parsed(given, "ensembleSize", values.positive, None)
    write = parsed(given, "writeQuorum", values.positive, None)
    ack = parsed(given, "ackQuorum", values.positive, None)
    ensemble = ensemble or max(3, write or 0)
    write = write or min(3, ensemble)
    ack = ack or write // 2 + 1
    if not ensemble >= write >= ack:
        raise OptionError(
            f"options ensembleSize, writeQuorum and ackQuorum are {ensemble}, {write} and {ack}: "
            "each must be at least the next"
        )
    return ensemble, write, ack


def _custom_metadata(wanted: Mapping[str, bytes]) -> Mapping[str, bytes]:
    for key in wanted:
        if key.startswith(KEYS_BEGIN_WITH):
            raise OptionError(f"option customMetadata.{key}: keys that begin with {KEYS_BEGIN_WITH} are the sink's own")
    return wanted
