"""Closed ledgers that name other bookies, and may have been fenced on this one once: they accept no writer's adds here.

If another bookie had this bookie's id before, and its ledgers were moved to others before this one began, their fences
are lost. A writer that was paused all the time, and still has the id in its ensemble, must not get an entry
acknowledged here (R9); nor may the bookie say "no such ledger" about ledgers that were once held under the id. So
normal adds and explicit LACs of these ledgers are rejected, entries that are not here are unknown, and repairs create
these ledgers fenced. The same holds for a closed ledger that names the bookie at the beginning and is moved to others
while it is in limbo: it joins the list when it leaves limbo (`limbo.check`).

A ledger that was open at the beginning and did not name the bookie needs no protection: its writer has replaced it. Ids
are kept (`ledger_list`) until a request shows that one belongs to an open ledger now: the old ledger was deleted,
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
