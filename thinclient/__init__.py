"""Bookgate's thin client: Apache BookKeeper ledgers without ZooKeeper.

    async with await BookKeeper.connect("grpc://127.0.0.1:4181") as bookkeeper:
        ledger = await bookkeeper.create_ledger(password=b"secret")
        await ledger.append(b"hello")
        await ledger.close()

`thinclient.blocking` has the same without asyncio.
"""

import logging

from ledger.entry import Entry
from ledger.errors import BKException
from ledger.ledger_id import LedgerId
from ledger.manager import LedgerRecord
from ledger.metadata import DigestType, LedgerMetadata, LedgerState
from thinclient.advanced_write_handle import AdvancedWriteHandle
from thinclient.auth import ClientAuthProvider, ClientAuthSession, TokenAuthProvider
from thinclient.client import BookKeeper
from thinclient.config import ClientConfig
from thinclient.read_handle import ReadHandle
from thinclient.write_handle import WriteHandle

__all__ = [
    "AdvancedWriteHandle",
    "BKException",
    "BookKeeper",
    "ClientAuthProvider",
    "ClientAuthSession",
    "ClientConfig",
    "DigestType",
    "Entry",
    "LedgerId",
    "LedgerMetadata",
    "LedgerRecord",
    "LedgerState",
    "ReadHandle",
    "TokenAuthProvider",
    "WriteHandle",
]

# Whoever wants the log lines adds a handler; without one, warnings would go to standard error.
logging.getLogger("thinclient").addHandler(logging.NullHandler())
