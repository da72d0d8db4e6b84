"""The streams of a cluster, by name: creating, opening, listing, deleting.

The directory is a scope of ledger ids; the id of a stream's record follows from its name, so that opening is one read
of the metadata. Creation makes the ledger first, then the record, which decides between two clients; deletion takes the
record last, so that one that was interrupted can be repeated.

Not its job: what is in a stream (`stream`). Source: docs/protocol/streams.md#metadata.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from bookgate.ledger.errors import (
    IllegalOpException,
    LedgerExistException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import (
    DEFAULT_SCOPE,
    NAME_KEY,
    SETTINGS_KEY,
    STREAM_KEY,
    Retention,
    StreamSettings,
    cursor_names_of,
    cursor_record_id,
    encoded_stream,
    stream_of,
    stream_record_id,
)
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.ledger_options import LedgerOptions
from bookgate.thinclient.streams.cursor import is_cursor_of, record_of
from bookgate.thinclient.streams.removal import remove_record, write_again
from bookgate.thinclient.streams.stream import Stream


class Streams:
    """The streams in one scope of a cluster."""

    def __init__(self, bookkeeper: BookKeeper, *, scope_id: int = DEFAULT_SCOPE) -> None:
        """
        Args:
            bookkeeper: The client. It stays open as long as streams are used.
            scope_id: The scope that holds the streams; a policy may give each team one.
        """
        self._bookkeeper = bookkeeper
        self._scope_id = scope_id

    def __repr__(self) -> str:
        return f"<Streams in scope {self._scope_id} of {self._bookkeeper!r}>"

    @property
    def scope_id(self) -> int:
        """The scope that holds the streams, signed."""
        return self._scope_id

    async def create(
        self,
        name: str,
        options: LedgerOptions | None = None,
        *,
        retention: Retention | None = None,
        max_fragment_bytes: int | None = 256 * 1024 * 1024,
        max_fragment_entries: int | None = None,
        max_fragment_seconds: float | None = 600.0,
    ) -> Stream:
        """Creates a stream.

        Args:
            name: Its name: 1 to 255 bytes of printable text.
            options: Ensemble, quorums, digest, password and custom metadata; the default is `LedgerOptions()`.
            retention: What is deleted; None keeps everything.
            max_fragment_bytes: Payload bytes after which a fragment ends; retention deletes complete fragments only.
            max_fragment_entries: The same in entries.
            max_fragment_seconds: The same in seconds.

        Raises:
            LedgerExistException: There is a stream of this name.
            IncorrectParameterException: The name is none, or the options contradict each other.
            NotEnoughBookiesException: Fewer writable bookies that honour terms are available than the ensemble needs.
            BKException: As `BookKeeper.create_unbounded_ledger`.
        """
        given, settings = options or LedgerOptions(), StreamSettings(retention or Retention(), max_fragment_seconds)
        record_id = stream_record_id(name, self._scope_id)
        custom = {**(given.custom_metadata or {}), NAME_KEY: name.encode()}
        wanted = replace(given, ledger_id=None, scope_id=self._scope_id, uuid_version=None, custom_metadata=custom)
        handle = await self._bookkeeper.create_unbounded_ledger(
            wanted, max_fragment_bytes=max_fragment_bytes, max_fragment_entries=max_fragment_entries
        )
        await handle.release()
        described = {STREAM_KEY: encoded_stream(name, handle.ledger_id), SETTINGS_KEY: settings.encoded()}
        metadata = record_of(handle.metadata.last_fragment.ensemble[0], described)
        try:
            record = await self._bookkeeper.ledger_manager.create(record_id, metadata)
        except LedgerExistException:
            await self._bookkeeper.delete_ledger(handle.ledger_id)
            raise LedgerExistException(f"there is a stream {name!r} already; open it, or delete it first") from None
        return Stream(self._bookkeeper, record, given.password)

    async def open(self, name: str, password: bytes = b"") -> Stream:
        """Opens a stream.

        Args:
            name: Its name.
            password: The password given when it was created.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: There is no stream of this name.
            IllegalOpException: Another stream has the id of this name; choose another name.
        """
        try:
            record = await self._bookkeeper.read_record(stream_record_id(name, self._scope_id))
        except NoSuchLedgerExistsOnMetadataServerException:
            raise NoSuchLedgerExistsOnMetadataServerException(
                f"there is no stream {name!r} in scope {self._scope_id}: create it first"
            ) from None
        return Stream(self._bookkeeper, _checked(record, name)[0], password)

    async def open_or_create(
        self,
        name: str,
        password: bytes = b"",
        *,
        options: LedgerOptions | None = None,
        retention: Retention | None = None,
    ) -> Stream:
        """Opens a stream; creates it if there is none of this name.

        Args:
            name: Its name.
            password: The password of the stream.
            options: Of a stream that is created; its password is `password`.
            retention: Of a stream that is created.

        Raises:
            BKException: As `open` and `create`.
        """
        try:
            return await self.open(name, password)
        except NoSuchLedgerExistsOnMetadataServerException:
            pass
        try:
            return await self.create(name, replace(options or LedgerOptions(), password=password), retention=retention)
        except LedgerExistException:  # another client was faster
            return await self.open(name, password)

    async def names(self) -> AsyncGenerator[list[str], None]:
        """Lists the names of all streams, in pages without order. Leaves out records that can't be read.

        Raises:
            BKException: The listing could not be completed.
        """
        async for page in self._bookkeeper.list_ledgers(self._scope_id):
            if names := [name for record in page if (name := _name_in(record)) is not None]:
                yield names

    async def delete(self, name: str) -> bool:
        """Deletes a stream with its cursors; bookies delete its entries later.

        Returns:
            Whether it was there.

        Raises:
            UnauthorizedAccessException: The policy lets this client not write the stream's record, and nothing is gone;
                or not delete a cursor, the ledger or the record, and what comes before that is gone, in this order.
            BKException: The metadata could not be changed; repeat it.
        """
        record_id = stream_record_id(name, self._scope_id)
        try:
            ledger_id = _checked(await self._bookkeeper.read_record(record_id), name)[1]
        except NoSuchLedgerExistsOnMetadataServerException:
            return False

        def is_meant(found: LedgerRecord) -> bool:
            return stream_of(found.metadata.custom_metadata) == (name, ledger_id)

        # A removal may have to write first. Whoever may not is refused here, before anything is gone. No call asks for
        # the right to delete alone: whoever lacks that for one part is refused when its turn comes.
        record = await write_again(self._bookkeeper, record_id, is_meant)
        if record is None:
            return False
        for cursor in cursor_names_of(record.metadata.custom_metadata):
            cursor_id = cursor_record_id(name, cursor, self._scope_id)
            await remove_record(
                self._bookkeeper, cursor_id, lambda found: is_cursor_of(found, name, ledger_id.qualified_name)
            )
        await self._bookkeeper.delete_ledger(ledger_id)
        return await remove_record(self._bookkeeper, record_id, is_meant)


def _name_in(record: LedgerRecord) -> str | None:
    """The name of the stream whose record this is; None for what is no stream's record, as far as it can be read."""
    try:
        found = stream_of(record.metadata.custom_metadata)
    except MetadataFormatException:
        return None
    return None if found is None else found[0]


def _checked(record: LedgerRecord, name: str) -> tuple[LedgerRecord, LedgerId]:
    """The record and its ledger. Two names may have one id, though nobody will see it. Raises IllegalOpException."""
    found = stream_of(record.metadata.custom_metadata)
    if found is None or found[0] != name:
        other = f"ledger {record.ledger_id}" if found is None else f"stream {found[0]!r}"
        raise IllegalOpException(f"the id of stream {name!r} belongs to {other}: choose another name")
    return record, found[1]


async def open_stream(
    bookkeeper: BookKeeper,
    name: str,
    password: bytes = b"",
    *,
    scope_id: int = DEFAULT_SCOPE,
    options: LedgerOptions | None = None,
    retention: Retention | None = None,
) -> Stream:
    """Opens a stream; creates it if there is none of this name.

    Args:
        bookkeeper: The client.
        name: The name of the stream.
        password: The password of the stream.
        scope_id: The scope that holds the stream.
        options: Of a stream that is created; its password is `password`.
        retention: Of a stream that is created.

    Raises:
        BKException: As `Streams.open_or_create`.
    """
    streams = Streams(bookkeeper, scope_id=scope_id)
    return await streams.open_or_create(name, password, options=options, retention=retention)
