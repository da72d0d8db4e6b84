"""Streams: endless logs of records by name, with one writer at a time, any number of readers, cursors and retention.

    from bookgate import BookKeeper
    from bookgate.streams import open_stream

    async with BookKeeper.connect("grpc://127.0.0.1:4181") as bookkeeper:
        stream = await open_stream(bookkeeper, "orders")
        async with await stream.writer() as writer:
            await writer.append(b"first", producer="shop-7", sequence=1)
        async with await stream.reader(cursor="billing") as reader:
            async for record in reader.records():
                ...
                await reader.commit()

`bookgate.blocking` has the same without asyncio.
"""

from bookgate.ledger.errors import CursorMovedException
from bookgate.ledger.payload_codec import RecordPosition
from bookgate.ledger.stream_entry import StreamRecord
from bookgate.ledger.streams import DEFAULT_SCOPE, Retention
from bookgate.thinclient.streams.cursor import Cursor
from bookgate.thinclient.streams.directory import Streams, open_stream
from bookgate.thinclient.streams.places import Start
from bookgate.thinclient.streams.reader import StreamReader
from bookgate.thinclient.streams.stream import CursorState, Stream, StreamState
from bookgate.thinclient.streams.writer import StreamWriter

__all__ = [
    "DEFAULT_SCOPE",
    "Cursor",
    "CursorMovedException",
    "CursorState",
    "RecordPosition",
    "Retention",
    "Start",
    "Stream",
    "StreamReader",
    "StreamRecord",
    "StreamState",
    "StreamWriter",
    "Streams",
    "open_stream",
]
