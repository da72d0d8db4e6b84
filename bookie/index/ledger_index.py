"""The interface of an index: for each ledger a header, and for each of its entries a location.

Implemented by index files (`file_index`, the default) and by RocksDB. Ids are `LedgerId`s, or numbers, so that (scope,
id) is never confused with (0, id) (D1). Ledgers of scope 0, of which there may be many, are listed separately.

`update`, `delete`, `delete_below` and `read_back` belong to the holder of the checkpoint lock; any thread may call the
others.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from bookgate.bookie.index.file_format import IndexHeader, SlotRun
from bookgate.bookie.system.data_loss import OnLoss
from bookgate.ledger.ledger_id import LedgerId


class LedgerIndex(Protocol):
    """Methods raise OSError; StorageCorruptException for contents that can't have been written."""

    @property
    def shows_unsynced(self) -> bool:
        """Whether readers see updates that are not synced. Where they never do, a sync without space drops them."""

    def read_header(self, ledger_id: LedgerId) -> tuple[IndexHeader | None, int] | None:
        """(header, highest entry id or -1); None for an unknown ledger. A header that was never written is None."""

    def location(self, ledger_id: LedgerId, entry_id: int) -> int:
        """Location of the entry (log id << 32 | offset of the packet); 0 if it is not in the index."""

    def locations_in_memory(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> Sequence[int]:
        """The first of `locations`, as many as need no disk. Never blocks."""

    def scattered_locations_in_memory(self, ledger_id: LedgerId, entry_ids: Sequence[int]) -> Sequence[int]:
        """`location` of entries in any order, ending before one that is absent or needs the disk. Never blocks."""

    def locations(self, ledger_id: LedgerId, first_entry_id: int, count: int) -> Sequence[int]:
        """`location` of up to `count` consecutive entries, ending before the first that is absent."""

    @property
    def cached_pages(self) -> int:
        """Pages of the index in memory."""

    def entry_ids(self, ledger_id: LedgerId) -> Iterator[int]:
        """Ids of the entries in the index, ascending."""

    def log_ids(self, ledger_id: LedgerId) -> set[int]:
        """Ids of the entry logs that the ledger's locations point into."""

    def update(self, ledger_id: LedgerId, header: IndexHeader | None, runs: Sequence[SlotRun]) -> None:
        """Writes locations, and the header if given, of one ledger; a new ledger needs one. Durable after `sync`.

        A location 0 deletes its entry, and the caller deletes all above it as well.
        """

    def delete_below(self, ledger_id: LedgerId, entry_id: int) -> None:
        """Deletes the entries below an id, but never the ledger's last one. Durable after `sync`."""

    def sync(self) -> None:
        """Makes all updates and deletions durable."""

    def prepare_deletion(self) -> None:
        """Does what `delete` may fail to do for want of descriptors: before anything is dropped of a ledger."""

    def read_back(self, ledger_ids: Sequence[LedgerId]) -> None:
        """From now on these ledgers are read as the disk has them, whatever memory shows. Syncs first."""

    def ledger_ids(self) -> array[int]:
        """Ids (type code q) of all ledgers of scope 0 in the index, ascending."""

    def scoped_ledgers(self) -> list[int]:
        """Numbers of all ledgers with a scope in the index, ascending."""

    def delete(self, ledger_id: LedgerId) -> None:
        """Forgets a ledger; one that is not there is fine. Durable after `sync`."""

    def find_lost(self, trusted: bool, on_loss: OnLoss) -> Collection[int]:
        """Ledgers that it held durably and no longer holds, one by one. Called once, before anything is changed."""

    def forget(self, numbers: Collection[int]) -> dict[int, int]:
        """These are about to be deleted, or are lost: they will not be missed. Durable on return; for `put_back`."""

    def put_back(self, forgotten: dict[int, int]) -> None:
        """These were not deleted after all. Durable after `sync`."""

    def compact(self) -> None:
        """Reclaims the space of deleted ledgers, unless that happens by itself. Blocking, possibly for long."""

    def close(self) -> None:
        """Releases what is open. Never raises because of what a failed update left behind."""
