"""Ledgers that were already closed when this bookie began and that did not name it: they accept no writer's adds here.

If another bookie had this bookie's id before, and its ledgers were moved to others since, their fences are lost. A
writer that was paused all the time, and still has the id in its ensemble, must not get an entry acknowledged here (R9);
nor may the bookie say "no such ledger" about ledgers that were once held under the id. So normal adds and explicit LACs
of these ledgers are rejected, entries that are not here are unknown, and repairs create these ledgers fenced.

A ledger that was open at that time and did not name the bookie needs no protection: its writer has replaced the bookie.
Ids are kept (`ledger_list`) until a request shows that one belongs to an open ledger now: the old ledger was deleted,
and its id used again (`limbo.check`). Not its job: finding these ledgers (`limbo.former_life`), ledgers that name the
bookie (`limbo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.storage.ledger_list import LedgerList
from bookgate.bookie.system.files import FileSystem

CLOSED_BEFORE_FILE = "bookie.closed-before"
_SCOPED_FILE = "bookie.scoped-closed-before"


def closed_before(files: FileSystem, directories: Sequence[Path]) -> LedgerList:
    """The list of these ledgers, not loaded yet; `directories` are the configured ledger directories."""
    what = "the list of ledgers that were closed before the bookie began"
    return LedgerList(files, directories, CLOSED_BEFORE_FILE, _SCOPED_FILE, what)
