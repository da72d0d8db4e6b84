"""Ledgers in limbo: those of which this bookie may have lost entries, keys or fences.

The bookie serves the entries that it still holds. Others are unknown, and so are the last entry, the LAC and whether
the ledger was fenced: the bookie never says that there is no such entry or no such ledger, and accepts no normal adds
(S8).

When an operator accepts a loss, every ledger that the metadata have at that time enters limbo, and so does every one of
which something is still here, since the metadata may be older, as after a restored backup; ledgers created later do
not. When the bookie begins anew, the ledgers enter whose metadata name its id (`limbo.former_life`). A single ledger
enters if its index file is missing, is an older copy, or has lost entries (`index_list`). A ledger leaves once it is
verified (`limbo.check`). The ids are in a list beside the ledger directories, so limbo survives restarts
(`ledger_list`).

In storage of type `db`, Apache BookKeeper's bookie may also have marked ledgers in limbo in RocksDB.

Any thread reads and changes; one change waits for another, since ledgers enter when a request first looks them up,
while the check's thread lets others leave. Not its job: responses (`reader`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from bookgate.bookie.storage.ledger_list import LedgerList
from bookgate.bookie.system.data_loss import OnLoss
from bookgate.bookie.system.files import FileSystem
from bookgate.bookie.system.threads import REAL_THREADS, Threads
from bookgate.ledger.ledger_id import ledger_name
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LIMBO_FILE = "bookie.limbo"
SCOPED_LIMBO_FILE = "bookie.scoped-limbo"
"""The file of scoped ledgers in limbo, if there are any: the 16 bytes of each number."""
_MOST_LOGGED = 100


class Limbo:
    """See the module. `directories` are the configured ledger directories, the parents of `current`."""

    def __init__(self, files: FileSystem, directories: Sequence[Path], threads: Threads = REAL_THREADS) -> None:
        self._lock = threads.lock()
        """Held while the list is read, changed and replaced."""
        self._list = LedgerList(files, directories, LIMBO_FILE, SCOPED_LIMBO_FILE, "the list of ledgers in limbo")

    def __contains__(self, number: object) -> bool:
        return number in self._list

    def __len__(self) -> int:
        return len(self._list.numbers)

    def numbers(self) -> list[int]:
        """All numbers, ascending."""
        return list(self._list.numbers)

    def load(self, on_loss: OnLoss) -> None:
        """Reads the stored list; calls `on_loss` if all copies are damaged. Raises OSError."""
        self._list.load(on_loss)

    def begin(self, numbers: Collection[int]) -> None:
        """Replaces the list for a bookie that begins anew: in limbo are these ledgers, which name its id, and no
        others.

        Durable on return. Raises OSError.
        """
        with self._lock:
            self._list.replace(LedgerNumbers(numbers))
        if numbers:
            log_event(
                _log,
                "former_life_found",
                logging.WARNING,
                ledgers=len(numbers),
                note="their metadata name this bookie, which is empty: what it held is unknown, not absent, until each "
                "is verified",
            )

    def add(self, numbers: Collection[int]) -> None:
        """Adds ledgers because a loss was accepted. Durable on return. Raises OSError."""
        with self._lock:
            self._list.replace(self._list.numbers | LedgerNumbers(numbers))
        _tell_of_loss(numbers, "what is missing of them here is unknown, not absent, until each is verified")

    def add_held(self, numbers: Collection[int]) -> list[int]:
        """Adds those that are not in the list, because a loss was accepted and something of them is here. Returns them.

        Durable on return. Raises OSError.
        """
        new = self._add_new(numbers)
        if new:
            _tell_of_loss(
                new,
                "the metadata do not list them, and something of them is here: they were deleted, or the metadata are "
                "older than this bookie",
            )
        return new

    def add_lost(self, numbers: Collection[int]) -> None:
        """Adds ledgers that the index has lost, wholly or in part. Durable on return. Raises OSError."""
        for number in self._add_new(numbers)[:_MOST_LOGGED]:
            log_event(
                _log,
                "ledger_lost_entries",
                logging.ERROR,
                ledger=ledger_name(number),
                note="it is in limbo until verified",
            )

    def remove(self, numbers: Collection[int]) -> None:
        """Removes verified ledgers. Durable on return. Raises OSError."""
        with self._lock:
            self._list.replace(self._list.numbers - LedgerNumbers(numbers))

    def _add_new(self, numbers: Collection[int]) -> list[int]:
        """Adds those that are not in the list, and returns them."""
        with self._lock:
            new = [number for number in numbers if number not in self._list.numbers]
            if new:
                self._list.replace(self._list.numbers | LedgerNumbers(new))
        return new


def _tell_of_loss(numbers: Collection[int], note: str) -> None:
    log_event(_log, "loss_accepted", logging.WARNING, ledgers=len(numbers), note=note)
