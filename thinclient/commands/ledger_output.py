"""How commands print a ledger, and how they read the times, sizes and pairs that people type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import deleted_before
from bookgate.runtime.command_line.output import laid_out, print_result, shown_time

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4} | {
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}


def describe(record: LedgerRecord) -> dict[str, Any]:
    """A ledger for a program: everything but the password."""
    metadata = record.metadata
    closed = metadata.is_closed
    return {
        "ledger_id": record.ledger_id.low,
        "scope_id": record.ledger_id.scope_id,
        "version": record.version,
        "state": metadata.state.name,
        "last_entry_id": metadata.last_entry_id if closed else None,
        "length": metadata.length if closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "digest_type": metadata.digest_type.name if metadata.digest_type else None,
        "fragments": [{"first_entry_id": f.first_entry_id, "bookies": list(f.ensemble)} for f in metadata.fragments],
        "custom_metadata": {
            key: value.decode(errors="backslashreplace") for key, value in metadata.custom_metadata.items()
        },
        "created_ms": record.creation_ms,
        **_unbounded(metadata),
    }


def print_ledger(record: LedgerRecord, as_json: bool) -> None:
    """Prints what `describe` tells; to a person with the time of its creation as such."""
    shown = describe(record)
    if not as_json and laid_out():
        shown["created"] = shown_time(shown.pop("created_ms"))
    print_result(shown, as_json)


def _unbounded(metadata: LedgerMetadata) -> dict[str, Any]:
    """What only an unbounded ledger has."""
    if metadata.terms is None:
        return {}
    terms = metadata.terms
    return {
        "term": terms.term,
        "deleted_before": deleted_before(metadata),
        "max_fragment_bytes": terms.caps.max_bytes,
        "max_fragment_entries": terms.caps.max_entries,
    }


def custom_metadata_text(record: LedgerRecord) -> str:
    """The custom metadata in a cell of a table."""
    pairs = record.metadata.custom_metadata.items()
    return ", ".join(f"{key}={value.decode(errors='backslashreplace')}" for key, value in pairs)


COLUMNS: dict[str, Callable[[LedgerRecord], str]] = {
    "ledger": lambda record: str(record.ledger_id),
    "state": lambda record: str(record.metadata.state.name),
    "entries": lambda record: str(record.metadata.last_entry_id + 1) if record.metadata.is_closed else "",
    "bytes": lambda record: str(record.metadata.length) if record.metadata.is_closed else "",
    "E/Qw/Qa": lambda record: quorums_text(record),
    "created": lambda record: shown_time(record.creation_ms),
    "custom metadata": custom_metadata_text,
}
"""The columns of a list of ledgers and their cells."""


def columns_of(text: str | None) -> Mapping[str, Callable[[LedgerRecord], str]]:
    """The columns `a,b` in that order; all for None. Raises IncorrectParameterException."""
    return COLUMNS if text is None else {name: COLUMNS[name] for name in map(_column, text.split(","))}


def _column(typed: str) -> str:
    known = {name.lower(): name for name in COLUMNS}
    wanted = re.sub("[-_]", " ", typed.strip()).lower()
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, 1)
    hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(COLUMNS)}"
    raise IncorrectParameterException(f"--columns: no column {typed.strip()!r}; {hint}")


def quorums_text(record: LedgerRecord) -> str:
    """Ensemble size, write quorum size and ack quorum size in a cell of a table."""
    metadata = record.metadata
    return f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}"


def pairs_of(texts: Sequence[str]) -> dict[str, bytes]:
    """`KEY=VALUE`, each. Raises IncorrectParameterException."""
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise IncorrectParameterException(f"--custom-metadata {text!r} is not KEY=VALUE")
        pairs[key] = value.encode()
    return pairs


def wanted_pairs_of(texts: Sequence[str]) -> dict[str, bytes | None]:
    """`KEY=VALUE`, or `KEY` for any value. Raises IncorrectParameterException."""
    pairs: dict[str, bytes | None] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key:
            raise IncorrectParameterException(f"--custom-metadata {text!r} is neither KEY nor KEY=VALUE")
        pairs[key] = value.encode() if separator else None
    return pairs


def milliseconds_of(text: str, option: str, now: datetime) -> int:
    """A time: `7d` is seven days before now (s, m, h, d, w); else ISO 8601, in UTC where it names no zone.

    Raises IncorrectParameterException.
    """
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if ago:
        return int((now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])).timestamp() * 1000)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise IncorrectParameterException(
            f"{option} {text!r} is no time; write 7d or 36h for so long ago, or 2026-11-24T10:30"
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def bytes_of(text: str, option: str) -> int:
    """A size: `4096`, `64KiB`, `1.5GB`. Raises IncorrectParameterException."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not found or found[2] not in _BYTES:
        raise IncorrectParameterException(f"{option} {text!r} is no size; write 4096, 64KiB or 1.5GB")
    return int(float(found[1]) * _BYTES[found[2]])
