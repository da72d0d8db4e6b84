"""The client without asyncio: the names of `bookgate`, each call returning when it is done."""

from bookgate.thinclient.administration.blocking import Admin
from bookgate.thinclient.blocking.client import (
    AdvancedWriteHandle,
    BookKeeper,
    Cursor,
    LedgerManager,
    ReadHandle,
    RecordWriter,
    ServiceDiscovery,
    Stream,
    StreamReader,
    Streams,
    StreamWriter,
    UnboundedWriteHandle,
    WriteHandle,
)

__all__ = [
    "Admin",
    "AdvancedWriteHandle",
    "BookKeeper",
    "Cursor",
    "LedgerManager",
    "ReadHandle",
    "RecordWriter",
    "ServiceDiscovery",
    "Stream",
    "StreamReader",
    "StreamWriter",
    "Streams",
    "UnboundedWriteHandle",
    "WriteHandle",
]
