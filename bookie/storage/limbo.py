"""Ledgers in limbo: those of which this bookie may have lost something, because a start accepted a loss.

What it still holds of them is served. What it does not hold is unknown, and so are the last entry, the LAC and whether
the ledger was fenced: the bookie never says that there is no such entry or no such ledger, and accepts no normal adds
(S8).

A ledger enters when a loss is accepted: every ledger that the metadata has at that time. Ledgers created later are not
concerned. So it does when the bookie begins anew under an id that the ledger's metadata name (`limbo.former_life`). A
ledger whose index file is missing, is an older copy, or has lost entries enters by itself (`index_list`).
A ledger leaves once it is verified (`limbo.check`). The ids are a list beside the ledger directories, so limbo survives
restarts (`ledger_list`).

Storage of type `db` has a limbo of its own in addition, which Apache BookKeeper's bookie marks in RocksDB.

Any thread reads; changes are made one at a time. Not its job: responses (`reader`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from bookgate.bookie.storage.ledger_list import LedgerList
from bookgate.bookie.system.data_loss import OnLoss
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.ledger_id import ledger_name
from bookgate.ledger.ledger_numbers import LedgerNumbers
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LIMBO_FILE = "bookie.limbo"
SCOPED_LIMBO_FILE = "bookie.scoped-limbo"
"""The same for ledgers with a scope, where there are any: the 16 bytes of each."""
_MOST_LOGGED = 100


class Limbo:
    """`directories` are the configured ledger directories, the parents of `current`."""

    def __init__(self, files: FileSystem, directories: Sequence[Path]) -> None:
        self._list = LedgerList(files, directories, LIMBO_FILE, SCOPED_LIMBO_FILE, "the list of ledgers in limbo")

    def __contains__(self, number: object) -> bool:
        return number in self._list

    def __len__(self) -> int:
        return len(self._list.numbers)

    def numbers(self) -> list[int]:
        """All numbers, ascending."""
        return list(self._list.numbers)

    def load(self, on_loss: OnLoss) -> None:
        """Reads what an earlier process left; calls `on_loss` if only damaged files say it. Raises OSError."""
        self._list.load(on_loss)

    def begin(self, numbers: Collection[int]) -> None:
        """The directories are a new bookie's: in limbo are these ledgers, of a former life, and no others.

        Durable on return. Raises OSError.
        """
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
        """A loss was accepted. Durable on return. Raises OSError."""
        self._list.replace(self._list.numbers | LedgerNumbers(numbers))
        log_event(
            _log,
            "loss_accepted",
            logging.WARNING,
            ledgers=len(numbers),
            note="what is missing of them here is unknown, not absent, until each is verified",
        )

    def add_lost(self, numbers: Collection[int]) -> None:
        """The index has lost these ledgers, or entries of them. Durable on return. Raises OSError."""
        new = [number for number in numbers if number not in self._list.numbers]
        if not new:
            return
        self._list.replace(self._list.numbers | LedgerNumbers(new))
        for number in new[:_MOST_LOGGED]:
            log_event(
                _log,
                "ledger_lost_entries",
                logging.ERROR,
                ledger=ledger_name(number),
                note="it is in limbo until verified",
            )

    def remove(self, numbers: Collection[int]) -> None:
        """Removes verified ledgers. Durable on return. Raises OSError."""
        self._list.replace(self._list.numbers - LedgerNumbers(numbers))
