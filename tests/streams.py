"""An unbounded ledger that a test writes request by request: whose entry is where, at which term, is the test's choice.

It goes by docs/protocol/unbounded-ledgers.md as far as the test lets it: adds go to the whole ensemble with the term,
and are fully replicated before the next one is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from bookgate.bookie.replication.copies.fragments import complete_fragments
from bookgate.ledger.digest import digest_for, ledger_master_key
from bookgate.ledger.entry import decode_entry, encode_entry
from bookgate.ledger.errors import MetadataVersionException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, Fragment, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager
from bookgate.ledger.unbounded import begin_fragment, begin_term, close_unbounded, create_unbounded, open_term
from bookgate.ledger.wire.messages import AddRequest, Operation, ReadRequest, ReadResponse, Status
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.handles.context import LedgerSecrets

_TIMEOUT = 10.0
PASSWORD = b"planted-secret"


class Stream:
    """Of one client after the other: `take_over` is the next one's."""

    def __init__(self, pool: BookiePool, manager: LedgerManager, ledger_id: LedgerId) -> None:
        self._pool = pool
        self._manager = manager
        self.ledger_id = ledger_id
        self.entries: list[bytes] = []
        self.terms: list[int] = []
        """By entry the term at which it was confirmed."""
        self._digest = digest_for(DigestType.CRC32C, PASSWORD)
        self.secrets = LedgerSecrets(ledger_master_key(PASSWORD), self._digest)

    @classmethod
    async def create(
        cls, pool: BookiePool, manager: LedgerManager, ensemble: Sequence[str], quorums: tuple[int, int] = (3, 2)
    ) -> Stream:
        metadata = LedgerMetadata.new(ensemble, *quorums, password=PASSWORD)
        record = await manager.create(None, create_unbounded(metadata))
        return cls(pool, manager, record.ledger_id)

    async def metadata(self) -> LedgerMetadata:
        return (await self._manager.read(self.ledger_id)).metadata

    async def append(self, *payloads: bytes) -> None:
        """Each is on the whole ensemble before the next; an empty one is a truncate entry."""
        for payload in payloads:
            metadata = await self.metadata()
            entry_id = len(self.entries)
            for bookie_id in metadata.last_fragment.ensemble:
                status = await self.add(bookie_id, entry_id, payload)
                assert status == Status.EOK, f"{bookie_id} answers {status} to entry {entry_id}"
            self.entries.append(payload)
            self.terms.append(metadata.terms.term if metadata.terms else 0)

    async def add(self, bookie_id: str, entry_id: int, payload: bytes, term: int | None = None) -> int:
        """An add at one bookie, at the ledger's term or an older one; returns the status."""
        terms = (await self.metadata()).terms
        assert terms is not None
        number, length = self.ledger_id.number, sum(map(len, self.entries[:entry_id])) + len(payload)
        packet = encode_entry(self._digest, number, entry_id, entry_id - 1, length, payload)
        request = AddRequest(
            self._pool.next_txn_id(),
            number,
            entry_id,
            self.secrets.master_key,
            packet,
            term=terms.term if term is None else term,
            lafr=entry_id - 1,
            truncate=not payload,
        )
        return (await self._pool.request(bookie_id, Operation.ADD_ENTRY, request, _TIMEOUT)).status

    async def spoil(self, bookie_id: str, entry_id: int) -> None:
        """The bookie stores the entry with a bit turned over, as a disk might; it verifies no digest."""
        number, payload = self.ledger_id.number, self.entries[entry_id]
        packet = bytearray(encode_entry(self._digest, number, entry_id, entry_id - 1, 100, payload))
        packet[-1] ^= 1
        request = AddRequest(
            self._pool.next_txn_id(), number, entry_id, self.secrets.master_key, bytes(packet), recovery=True
        )
        response = await self._pool.request(bookie_id, Operation.ADD_ENTRY, request, _TIMEOUT)
        assert response.status == Status.EOK

    async def begin_fragment(self, *ensemble: str) -> None:
        """The next entry goes there. Where the last fragment has no entry the new one takes its place."""
        fragment = Fragment(len(self.entries), ensemble)
        await self._change(lambda metadata: begin_fragment(metadata, fragment, sum(map(len, self.entries))))

    async def take_over(self, holder: int) -> None:
        """At the next term, which the bookies of the last fragment hear of."""
        await self._change(lambda metadata: begin_term(metadata, holder))
        metadata = await self.metadata()
        assert metadata.terms is not None
        for bookie_id in metadata.last_fragment.ensemble:
            request = ReadRequest(
                self._pool.next_txn_id(),
                self.ledger_id.number,
                -1,
                True,
                self.secrets.master_key,
                term=metadata.terms.term,
            )
            await self._pool.request(bookie_id, Operation.READ_ENTRY, request, _TIMEOUT)
        await self._change(open_term)

    async def close(self) -> None:
        last, length = len(self.entries) - 1, sum(map(len, self.entries))
        await self._change(lambda metadata: close_unbounded(metadata, last, length))

    async def _change(self, transform: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        while True:
            record = await self._manager.read(self.ledger_id)
            with contextlib.suppress(MetadataVersionException):
                await self._manager.write(self.ledger_id, transform(record.metadata), record.version)
                return

    async def copy_at(self, bookie_id: str, entry_id: int) -> bytes | None:
        """What a reader that knows that the entry is confirmed gets from one bookie; None: it has no such entry."""
        number = self.ledger_id.number
        request = ReadRequest(self._pool.next_txn_id(), number, entry_id, known_lac=entry_id)
        response = await self._pool.request(bookie_id, Operation.READ_ENTRY, request, _TIMEOUT)
        if response.status in (Status.ENOENTRY, Status.ENOLEDGER):
            return None
        assert isinstance(response, ReadResponse), response
        assert response.status == Status.EOK, response
        return decode_entry(self._digest, response.body or b"", number, entry_id).payload

    async def check(self) -> None:
        """Every entry of each complete fragment is at each of its bookies that is to have it, and the same."""
        for fragment in complete_fragments(await self.metadata()):
            for index, bookie_id in enumerate(fragment.ensemble):
                for entry_id in fragment.due(index):
                    found = await self.copy_at(bookie_id, entry_id)
                    assert found == self.entries[entry_id], f"entry {entry_id} at {bookie_id}"
