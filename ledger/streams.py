"""Streams and cursors in the metadata: which ledger a name means, and what its custom metadata say.

A stream has an unbounded ledger with a random id, and a record that names it: an empty closed ledger, whose id follows
from the stream's name. So a stream that is created again has another ledger, and meets nothing of the deleted one. The
directory of streams is a scope: a listing of the scope lists them. A cursor is a record of the same kind. So neither a
commit nor a change of settings disturbs the stream's writer and readers. Source: docs/protocol/streams.md#metadata.

Not its job: the rules of cursors and retention (`thinclient.core.streams`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.terms import check_limit

STREAM_KEY = "bookgate.stream"
"""Custom metadata of a stream's record: its name and its ledger as JSON."""
NAME_KEY = "bookgate.stream.name"
"""Custom metadata of the stream's ledger, for people."""
SETTINGS_KEY = "bookgate.stream.settings"
CURSORS_KEY = "bookgate.stream.cursors"
CURSOR_KEY = "bookgate.cursor"
"""Custom metadata of a cursor: the stream and its ledger, name, position and time as JSON."""

MAX_NAME_BYTES = 255
_HALF_BYTES = 8


def _half(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_HALF_BYTES], signed=True)


DEFAULT_SCOPE = _half("bookgate.streams")
"""The scope of streams whose application names none."""


def check_name(kind: str, name: str) -> str:
    """Returns the name. Raises IncorrectParameterException for one that no stream or cursor can have."""
    # Half a surrogate pair, which UTF-8 has not, is not printable.
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise IncorrectParameterException(
            f"{kind} {name!r}: a name has 1 to {MAX_NAME_BYTES} bytes of printable text, encoded as UTF-8"
        )
    return name


def stream_record_id(name: str, scope_id: int = DEFAULT_SCOPE) -> LedgerId:
    """The record of the stream with this name. Raises IncorrectParameterException."""
    if scope_id == 0:
        raise IncorrectParameterException("streams have a scope of their own: scope_id is any number but 0")
    return LedgerId(scope_id, _half("stream\n" + check_name("stream", name)))


def cursor_record_id(stream: str, cursor: str, scope_id: int = DEFAULT_SCOPE) -> LedgerId:
    """The record of a cursor. Raises IncorrectParameterException."""
    return LedgerId(scope_id, _half(f"cursor\n{check_name('stream', stream)}\n{check_name('cursor', cursor)}"))


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a stream keeps its records. The last fragment, and what the next writer needs, always stay.

    Args:
        max_age_seconds: Records older than this are deleted; None for no limit.
        max_bytes: The oldest records beyond so many payload bytes are deleted; None for no limit.
        delete_consumed: Records that all cursors have committed are deleted, if there is a cursor.
        keep_for_cursors: Nothing that a cursor has not committed is deleted, whatever its age and size.

    Raises:
        IncorrectParameterException: A limit is not above 0.
    """

    max_age_seconds: float | None = None
    max_bytes: int | None = None
    delete_consumed: bool = False
    keep_for_cursors: bool = True

    def __post_init__(self) -> None:
        check_limit("max_age_seconds", self.max_age_seconds)
        check_limit("max_bytes", self.max_bytes)

    @property
    def keeps_everything(self) -> bool:
        """Whether nothing is ever deleted by itself."""
        return self.max_age_seconds is None and self.max_bytes is None and not self.delete_consumed


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What all writers of a stream keep to.

    Attributes:
        retention: What is deleted.
        max_fragment_seconds: Seconds after which a fragment ends; None for no limit.

    Raises:
        IncorrectParameterException: A limit is not above 0.
    """

    retention: Retention = field(default_factory=Retention)
    max_fragment_seconds: float | None = None

    def __post_init__(self) -> None:
        check_limit("max_fragment_seconds", self.max_fragment_seconds)

    def encoded(self) -> bytes:
        """The custom metadata's value."""
        kept = self.retention
        return _json(
            max_age_seconds=kept.max_age_seconds,
            max_bytes=kept.max_bytes,
            delete_consumed=kept.delete_consumed,
            keep_for_cursors=kept.keep_for_cursors,
            max_fragment_seconds=self.max_fragment_seconds,
        )

    @classmethod
    def of(cls, custom_metadata: Mapping[str, bytes]) -> StreamSettings:
        """The settings of a stream. Raises MetadataFormatException."""
        found = _object(SETTINGS_KEY, custom_metadata)
        try:
            retention = Retention(
                found.get("max_age_seconds"),
                found.get("max_bytes"),
                bool(found.get("delete_consumed", False)),
                bool(found.get("keep_for_cursors", True)),
            )
            return cls(retention, found.get("max_fragment_seconds"))
        except IncorrectParameterException as error:
            raise MetadataFormatException(f"custom metadata {SETTINGS_KEY!r}: {error}") from error


def encoded_stream(name: str, ledger_id: LedgerId) -> bytes:
    """The custom metadata's value for a stream's record."""
    return _json(name=name, ledger=ledger_id.qualified_name)


def stream_of(custom_metadata: Mapping[str, bytes]) -> tuple[str, LedgerId] | None:
    """The name and the ledger of a stream; None for what is no stream's record. Raises MetadataFormatException."""
    if STREAM_KEY not in custom_metadata:
        return None
    found = _object(STREAM_KEY, custom_metadata)
    try:
        return check_name("stream", str(found["name"])), LedgerId.parse(str(found["ledger"]))
    except (IncorrectParameterException, ValueError) as error:
        raise MetadataFormatException(f"custom metadata {STREAM_KEY!r}: {error}") from error


def cursor_names_of(custom_metadata: Mapping[str, bytes]) -> tuple[str, ...]:
    """The cursors of a stream, in the order of their creation. Raises MetadataFormatException."""
    if CURSORS_KEY not in custom_metadata:
        return ()
    names = _object(CURSORS_KEY, custom_metadata)["names"]
    if not isinstance(names, list):
        raise MetadataFormatException(f"custom metadata {CURSORS_KEY!r} lists no names")
    try:
        return tuple(check_name("cursor", str(name)) for name in names)
    except IncorrectParameterException as error:
        raise MetadataFormatException(f"custom metadata {CURSORS_KEY!r}: {error}") from error


def encoded_cursor_names(names: tuple[str, ...]) -> bytes:
    """The custom metadata's value for these cursors."""
    return _json(names=list(names))


@dataclass(frozen=True, slots=True)
class CommittedCursor:
    """A cursor as it is stored.

    Attributes:
        stream: The name of the stream.
        ledger: The ledger of the stream, as a qualified name; a cursor of an earlier stream of this name, whose ledger
            is another one, counts as none.
        name: The name of the cursor.
        position: The first record that is not committed.
        committed_ms: When, in milliseconds since 1970.
        token: Random, drawn at its creation: a cursor that is deleted and made anew has another one. Empty where a
            client has written it that knows no tokens.
    """

    stream: str
    ledger: str
    name: str
    position: RecordPosition
    committed_ms: int
    token: str = ""

    def moved(self, position: RecordPosition, now_ms: int) -> CommittedCursor:
        """The cursor at another position."""
        return replace(self, position=position, committed_ms=now_ms)

    def encoded(self) -> bytes:
        """The custom metadata's value."""
        entry_id, number = self.position
        return _json(
            stream=self.stream,
            ledger=self.ledger,
            name=self.name,
            entry=entry_id,
            record=number,
            committed_ms=self.committed_ms,
            token=self.token or None,
        )

    @classmethod
    def of(cls, custom_metadata: Mapping[str, bytes]) -> CommittedCursor:
        """The cursor of a record. Raises MetadataFormatException."""
        found = _object(CURSOR_KEY, custom_metadata)
        try:
            return cls(
                check_name("stream", str(found["stream"])),
                str(found["ledger"]),
                check_name("cursor", str(found["name"])),
                RecordPosition(int(found["entry"]), int(found["record"])),
                int(found["committed_ms"]),
                str(found.get("token", "")),
            )
        except (IncorrectParameterException, TypeError, ValueError) as error:
            raise MetadataFormatException(f"custom metadata {CURSOR_KEY!r}: {error}") from error


_NEEDED = {
    STREAM_KEY: ("name", "ledger"),
    SETTINGS_KEY: (),
    CURSORS_KEY: ("names",),
    CURSOR_KEY: ("stream", "ledger", "name", "entry", "record", "committed_ms"),
}


def _json(**values: Any) -> bytes:
    kept = {name: value for name, value in values.items() if value is not None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def _finite(text: str) -> float:
    """A number of JSON text. Raises ValueError for NaN and infinity, which Python reads and JSON has not."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _object(key: str, custom_metadata: Mapping[str, bytes]) -> dict[str, Any]:
    # Whoever may create a ledger in the scope writes what stands here: any error means that it can't be read.
    try:
        found = json.loads(custom_metadata[key], parse_float=_finite, parse_constant=_finite)
    except (KeyError, ValueError, RecursionError) as error:
        raise MetadataFormatException(f"custom metadata {key!r} are missing, or are no JSON") from error
    if not isinstance(found, dict):
        raise MetadataFormatException(f"custom metadata {key!r} are no object")
    missing = [name for name in _NEEDED[key] if name not in found]
    if missing:
        raise MetadataFormatException(f"custom metadata {key!r} lack {', '.join(missing)}")
    return found
