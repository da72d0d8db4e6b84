"""Ledgers whose every copy a test decides: what no client would write, written straight to the bookies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.quorum import write_set
from bookgate.ledger.wire.messages import EOK, AddRequest
from bookgate.thinclient.blocking.client import BookKeeper
from tests.integration.bookie.entry_client import EntryClient
from tests.spark.conftest import PASSWORD

BOOKIES = ("bookie-1", "bookie-2", "bookie-3")


@dataclass(frozen=True)
class Copy:
    """One copy of one entry, on its way to a bookie."""

    bookie_id: str
    entry_id: int
    length: int
    payload: bytes


Spoil = Callable[[int, Copy], bytes | None]
"""(ledger id, copy) → the packet to store, or None for none at all."""


def sound(ledger_id: int, copy: Copy) -> bytes:
    """The packet as it should be."""
    digest = digest_for(DigestType.CRC32C, PASSWORD)
    return encode_entry(digest, ledger_id, copy.entry_id, copy.entry_id - 1, copy.length, copy.payload)


def plant(
    client: BookKeeper,
    cluster: StandaloneCluster,
    spoil: Spoil = sound,
    *,
    entries: int = 60,
    write_quorum: int = 3,
    length: int | None = None,
    closed: bool = True,
) -> int:
    """A ledger on all three bookies with the copies that `spoil` gives; its id. `length` is what the metadata say."""
    metadata = LedgerMetadata.new(BOOKIES, write_quorum, 2, DigestType.CRC32C, PASSWORD)
    record = client.ledger_manager.create(None, metadata)
    ledger_id = record.ledger_id.low
    total = 0
    with ExitStack() as stack:
        bookies = [stack.enter_context(EntryClient(address)) for address in cluster.bookies]
        for entry_id in range(entries):
            payload = b"entry %d" % entry_id
            total += len(payload)
            for index in write_set(entry_id, len(BOOKIES), write_quorum):
                body = spoil(ledger_id, Copy(BOOKIES[index], entry_id, total, payload))
                if body is not None:
                    _store(bookies[index], ledger_id, entry_id, body)
    if closed:
        end = record.metadata.close(entries - 1, total if length is None else length)
        client.ledger_manager.write(LedgerId(0, ledger_id), end, record.version)
    return ledger_id


def _store(bookie: EntryClient, ledger_id: int, entry_id: int, body: bytes) -> None:
    status = bookie.status(AddRequest(entry_id, ledger_id, entry_id, ledger_master_key(PASSWORD), body, False))
    assert status == EOK
