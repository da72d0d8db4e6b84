"""The forms of option values: converts a string to a value, or raises ValueError with what it must be.

Nothing here knows the names of options; `options` puts the name before the message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from bookgate.ledger.metadata import DigestType

_RANGE = re.compile(r"\s*(-?\d+)\s*-\s*(-?\d+)?\s*")
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_TRUE_AND_FALSE = {"true": True, "false": False}
_INT64 = 1 << 64


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Ledger ids from `first` to `last`, both included; `last` None: no end."""

    first: int
    last: int | None


def integer(text: str) -> int:
    """Decimal, or with a prefix such as 0x."""
    try:
        return int(text.strip(), 0)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _int64(value: int) -> int:
    if not -_INT64 // 2 <= value < _INT64 // 2:
        raise ValueError("it does not fit 64 bits")
    return value


def scope_id(text: str) -> int:
    """Signed or unsigned, decimal or 0x…: scope ids are any 64-bit pattern, carried signed."""
    value = integer(text)
    return _int64(value - _INT64 if _INT64 // 2 <= value < _INT64 else value)


def ledger_ids(text: str) -> tuple[int, ...]:
    """Ledger ids in ascending order without duplicates."""
    ids = {_int64(integer(part)) for part in text.split(",") if part.strip()}
    if not ids:
        raise ValueError("it must be ledger ids separated by commas")
    return tuple(sorted(ids))


def ledger_range(text: str) -> LedgerRange:
    """`first-last` or `first-`."""
    match = _RANGE.fullmatch(text)
    if not match:
        raise ValueError("it must be first-last, both included, or first- for all from there on")
    first, last = _int64(int(match[1])), None if match[2] is None else _int64(int(match[2]))
    if last is not None and last < first:
        raise ValueError("its end lies before its beginning")
    return LedgerRange(first, last)


def positive(text: str) -> int:
    """An integer from 1 on."""
    value = integer(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def not_negative(text: str) -> int:
    """An integer from 0 on."""
    value = integer(text)
    if value < 0:
        raise ValueError("it must be 0 or more")
    return value


def size(text: str) -> int:
    """Bytes, with an optional k, m, g or t for powers of 1024."""
    match = _SIZE.fullmatch(text)
    if not match or int(match[1]) < 1:
        raise ValueError("it must be a number of bytes of 1 or more, such as 134217728 or 128m")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def boolean(text: str) -> bool:
    """`true` or `false`."""
    value = _TRUE_AND_FALSE.get(text.strip().lower())
    if value is None:
        raise ValueError("it must be true or false")
    return value


def timestamp_ms(text: str) -> int:
    """Milliseconds since 1970: as a number, or as ISO 8601, in UTC if it has no time zone."""
    try:
        return int(text.strip())
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("it must be milliseconds since 1970, or a time such as 2026-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def digest_type(text: str) -> DigestType:
    """A digest by BookKeeper's name."""
    name = text.strip().upper()
    name = "HMAC" if name == "MAC" else name
    if name not in DigestType.__members__:
        raise ValueError(f"it must be one of {', '.join(DigestType.__members__)}")
    return DigestType[name]


def write_id(text: str) -> str:
    """The name of a write. An empty one, as of a variable that is not set, would make a repeated write a new one."""
    if not text.strip():
        raise ValueError("it must not be empty: leave it out for a write that is never repeated")
    return text


def offsets(text: str) -> dict[int, int]:
    """JSON, entry ids by ledger id."""
    try:
        return {_int64(int(ledger_id)): _entry_id(entry_id) for ledger_id, entry_id in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise ValueError('JSON such as {"<ledger id>": <entry id>}') from None


def passwords(text: str) -> dict[int, bytes]:
    """JSON, passwords by ledger id. Its error messages do not contain them."""
    try:
        given = json.loads(text)
        if not all(isinstance(value, str) for value in given.values()):
            raise TypeError
        return {int(ledger_id): password.encode() for ledger_id, password in given.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError('it must be metadata, or JSON such as {"<ledger id>": "<password>"}') from None


def _entry_id(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not an entry id")
    return _int64(value)
