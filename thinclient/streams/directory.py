"""The streams of a cluster, by name: creating, opening, listing, deleting.

The directory is a scope of ledger ids; a name's id follows from the name, so that opening is one read of the metadata.

Not its job: what is in a stream (`stream`). Source: docs/protocol/streams.md#metadata.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

from bookgate.ledger.errors import (
    IllegalOpException,
    LedgerExistException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.streams import (
    DEFAULT_SCOPE,
    SETTINGS_KEY,
    STREAM_KEY,
    Retention,
    StreamSettings,
    cursor_ledger_id,
    cursor_names_of,
    stream_ledger_id,
    stream_name_of,
)
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.handles.ledger_options import LedgerOptions
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
        given = options or LedgerOptions()
        settings = StreamSettings(secrets.token_hex(8), retention or Retention(), max_fragment_seconds)
        custom = {
            **(given.custom_metadata or {}),
            STREAM_KEY: name.encode(),
            SETTINGS_KEY: settings.encoded(),
        }
        wanted = replace(
            given, ledger_id=stream_ledger_id(name, self._scope_id), scope_id=self._scope_id, custom_metadata=custom
        )
        try:
            handle = await self._bookkeeper.create_unbounded_ledger(
                wanted, max_fragment_bytes=max_fragment_bytes, max_fragment_entries=max_fragment_entries
            )
        except LedgerExistException:
            raise LedgerExistException(f"there is a stream {name!r} already; open it, or delete it first") from None
        await handle.release()
        return Stream(self._bookkeeper, handle.record, given.password)

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
            record = await self._bookkeeper.read_record(stream_ledger_id(name, self._scope_id))
        except NoSuchLedgerExistsOnMetadataServerException:
            raise NoSuchLedgerExistsOnMetadataServerException(
                f"there is no stream {name!r} in scope {self._scope_id}: create it first"
            ) from None
        return Stream(self._bookkeeper, _checked(record, name), password)

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
        """Lists the names of all streams, in pages without order.

        Raises:
            BKException: The listing could not be completed.
        """
        async for page in self._bookkeeper.list_ledgers(self._scope_id):
            found = (stream_name_of(record.metadata.custom_metadata) for record in page)
            if names := [name for name in found if name is not None]:
                yield names

    async def delete(self, name: str) -> bool:
        """Deletes a stream with its cursors; bookies delete its entries later.

        Returns:
            Whether it was there.

        Raises:
            BKException: The metadata could not be changed; repeat it.
        """
        ledger_id = stream_ledger_id(name, self._scope_id)
        try:
            record = _checked(await self._bookkeeper.read_record(ledger_id), name)
        except NoSuchLedgerExistsOnMetadataServerException:
            return False
        # Cursors first: whoever repeats a deletion that was interrupted finds the stream, and so their names.
        for cursor in cursor_names_of(record.metadata.custom_metadata):
            await self._bookkeeper.delete_ledger(cursor_ledger_id(name, cursor, self._scope_id))
        return await self._bookkeeper.delete_ledger(ledger_id)


def _checked(record: LedgerRecord, name: str) -> LedgerRecord:
    """Two names may have one id, though nobody will see it. Raises IllegalOpException."""
    found = stream_name_of(record.metadata.custom_metadata)
    if found != name:
        raise IllegalOpException(
            f"the id of stream {name!r} belongs to {'ledger' if found is None else f'stream {found!r}'} "
            f"{record.ledger_id}: choose another name"
        )
    return record


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
