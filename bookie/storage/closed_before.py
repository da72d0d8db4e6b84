"""Ledgers that were not open any more when this bookie began, and did not name it: no writer has any business here.

A bookie whose id was given to another one before, and whose ledgers were moved to others since, has forgotten their
fences. A writer that has slept since then, and still has the id in its ensemble, must not get an entry acknowledged
here (R9); nor is "no such ledger" the truth about what was once held under the id. So normal adds and explicit LACs of
these ledgers are refused, what is not here of them is unknown, and whoever repairs them makes them here fenced.

A ledger that is open then, and does not name the bookie, is no concern: the only one who may still write it has put
others in its place. Ids are kept (`ledger_list`) until one that was asked for here turns out to be an open ledger's:
the old one was deleted, and its id used again (`limbo.check`). Not its job: which ledgers (`limbo.former_life`), those
that name the bookie (`limbo`).
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
