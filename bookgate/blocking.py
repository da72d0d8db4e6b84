"""The client without asyncio: the names of `bookgate`, each call returning when it is done."""

from bookgate.thinclient.blocking.client import (
    AdvancedWriteHandle,
    BookKeeper,
    LedgerManager,
    ReadHandle,
    RecordWriter,
    ServiceDiscovery,
    WriteHandle,
)

__all__ = [
    "AdvancedWriteHandle",
    "BookKeeper",
    "LedgerManager",
    "ReadHandle",
    "RecordWriter",
    "ServiceDiscovery",
    "WriteHandle",
]
