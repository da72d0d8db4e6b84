"""Cookies: the text that ties a bookie's directories to its id, its other directories and its cluster.

The same bytes are in the metadata store and, as `VERSION`, in every directory. A start compares them with the
configuration (the master cookie), so that a bookie never serves, or overwrites, another's data (S4). The text is a line
with the layout version and the protobuf text format of CookieFormat; version 3 has three plain lines instead. Source:
docs/protocol/metadata.md#cookies, docs/protocol/metadata.md#cookie-check.

Not its job: reading and writing directories (`directories`) or the metadata store. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format

from bookgate.ledger.errors import BKException
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import CookieFormat

CURRENT_VERSION = 5
_FIRST_TEXT_FORMAT_VERSION = 4
_OLDEST_VERSION = 3


class InvalidCookieException(BKException):
    """The cookies do not match: this is another bookie's data. The message says what differs and what to do."""


@dataclass(frozen=True, slots=True)
class Cookie:
    """The contents of a cookie. Directories are as configured, the parents of `current`."""

    bookie_id: str
    journal_directories: str
    """Paths joined with commas."""
    ledger_directories: str
    """`<count> TAB path TAB path…`."""
    instance_id: str | None = None
    index_directories: str | None = None
    """As ledger_directories; None when they are the ledger directories."""
    version: int = field(default=CURRENT_VERSION, compare=False)

    @classmethod
    def build(
        cls,
        bookie_id: str,
        journal_directories: Sequence[Path],
        ledger_directories: Sequence[Path],
        instance_id: str | None,
        index_directories: Sequence[Path] = (),
    ) -> Cookie:
        """The master cookie of a configuration."""
        return cls(
            bookie_id,
            ",".join(map(str, journal_directories)),
            _join(ledger_directories),
            instance_id or None,
            _join(index_directories) if index_directories else None,
        )

    def encode(self) -> bytes:
        """The bytes for the metadata store and the VERSION files."""
        message = CookieFormat(
            bookieHost=self.bookie_id,
            journalDir=self.journal_directories,
            ledgerDirs=self.ledger_directories,
            instanceId=self.instance_id,
            indexDirs=self.index_directories,
        )
        return f"{CURRENT_VERSION}\n{text_format.MessageToString(message, as_utf8=True)}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Cookie:
        """The cookie of these bytes. Raises InvalidCookieException if they are invalid, or of a version before 3."""
        try:
            first, _, rest = data.decode("utf-8").partition("\n")
            version = int(first)
            if version < _OLDEST_VERSION:
                raise InvalidCookieException(
                    f"a cookie of layout version {version} is too old; upgrade the directories"
                )
            return _decode_lines(rest, version) if version < _FIRST_TEXT_FORMAT_VERSION else _decode_text(rest, version)
        except (ValueError, text_format.ParseError) as error:
            raise InvalidCookieException(f"this is no cookie: {data[:100]!r} ({error})") from error

    def difference(self, stored: Cookie, *, allow_expansion: bool = False) -> str | None:
        """How a stored cookie differs from this master cookie, for people; None if it matches."""
        pairs = (
            ("bookie id", self.bookie_id, stored.bookie_id),
            ("journal directories", self.journal_directories, stored.journal_directories),
            ("ledger directories", self.ledger_directories, stored.ledger_directories),
            ("index directories", self._index_or_ledger, stored._index_or_ledger),
            ("cluster instance id", self.instance_id, stored.instance_id),
        )
        expandable = ("ledger directories", "index directories") if allow_expansion else ()
        differing = (
            f"{name} {old!r} there, {new!r} here"
            for name, new, old in pairs
            if new != old and not (name in expandable and _paths_in(old) <= _paths_in(new))
        )
        return next(differing, None)

    @property
    def data_directories(self) -> frozenset[str]:
        """All ledger and index directories in the cookie."""
        return _paths_in(self.ledger_directories) | _paths_in(self._index_or_ledger)

    @property
    def _index_or_ledger(self) -> str:
        return self.index_directories or self.ledger_directories


def _join(paths: Sequence[Path]) -> str:
    return "\t".join([str(len(paths)), *map(str, paths)])


def _paths_in(joined: str | None) -> frozenset[str]:
    return frozenset((joined or "").split("\t")[1:])


def _decode_lines(text: str, version: int) -> Cookie:
    lines = text.split("\n")
    if len(lines) < 3:
        raise ValueError("three lines are missing")
    return Cookie(lines[0], lines[1], lines[2], version=version)


def _decode_text(text: str, version: int) -> Cookie:
    message = text_format.Parse(text, CookieFormat(), allow_unknown_field=True)
    if not message.IsInitialized():
        raise ValueError("bookieHost, journalDir or ledgerDirs is missing")
    return Cookie(
        message.bookieHost,
        message.journalDir,
        message.ledgerDirs,
        message.instanceId or None,
        message.indexDirs or None,
        version=version,
    )


class StartDecision(enum.Enum):
    """What a start has to do after comparing the cookies."""

    OK = enum.auto()
    NEW_ENVIRONMENT = enum.auto()
    """Write the master cookie into every directory, then create it in the metadata store."""
    EXPANSION = enum.auto()
    """Write the master cookie into every directory, then replace the cookie in the metadata store."""


def check(
    master: Cookie,
    in_metadata: bytes | None,
    in_directories: Mapping[Path, bytes | None],
    empty_directories: Collection[Path],
    *,
    allow_expansion: bool = False,
) -> StartDecision:
    """Decides whether and how a bookie may start.

    Args:
        master: The cookie of the configuration.
        in_metadata: The cookie in the metadata store; None if there is none.
        in_directories: The cookie in each directory; None if there is none.
        empty_directories: Directories without data, whether or not they have a cookie. A first start that was
            interrupted after it had written the cookies can thus be repeated.
        allow_expansion: New, empty ledger and index directories may have been added to those in the cookies; a
            directory that the metadata store's cookie lists is not new.

    Raises:
        InvalidCookieException: This is neither a new bookie nor the bookie of the cookies.
    """
    if in_metadata is not None:
        _verify(master, in_metadata, "the metadata store", allow_expansion)
    for path, content in in_directories.items():
        if content is not None:
            _verify(master, content, f"directory {path}", allow_expansion)
    if in_metadata is None and in_directories.keys() <= set(empty_directories):
        return StartDecision.NEW_ENVIRONMENT
    missing = [path for path, content in in_directories.items() if content is None]
    if in_metadata is not None and allow_expansion:
        known = Cookie.decode(in_metadata).data_directories | set(master.journal_directories.split(","))
        if all(str(path) not in known and path in empty_directories for path in missing):
            stored = [in_metadata, *(content for content in in_directories.values() if content is not None)]
            same = not missing and all(master.difference(Cookie.decode(content)) is None for content in stored)
            return StartDecision.OK if same else StartDecision.EXPANSION
    if not missing:
        if in_metadata is None:
            raise InvalidCookieException(
                f"the directories belong to bookie {master.bookie_id}, but the metadata store has no cookie for it: it "
                "was deleted, or this is another cluster. Connect to the right cluster, or empty the directories."
            )
        return StartDecision.OK
    if in_metadata is not None:
        raise InvalidCookieException(
            f"bookie {master.bookie_id} is registered in the metadata store, but has no cookie in {_names(missing)}: "
            "its data is gone or not mounted. Mount it, or decommission the bookie and delete its cookie."
        )
    not_empty = [path for path in missing if path not in empty_directories]
    if not_empty:
        raise InvalidCookieException(
            f"{_names(not_empty)} holds files but no cookie: it is not a new bookie's. Configure an empty directory."
        )
    return StartDecision.NEW_ENVIRONMENT


def _verify(master: Cookie, content: bytes, where: str, allow_expansion: bool) -> None:
    difference = master.difference(Cookie.decode(content), allow_expansion=allow_expansion)
    if difference is not None:
        raise InvalidCookieException(
            f"the cookie in {where} does not match the configuration: {difference}. "
            "Use the directories and the cluster of this bookie, or correct the configuration."
        )


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
