"""Examines the copies of one ledger: asks each bookie which entries it holds, twice if its response shows a lack.

That a bookie lacks an entry counts only after two responses two seconds apart; one response suffices for entries that
it holds, and for unknown results. Both must come from the same process: if the bookie was restarted in between, it is
asked once more, since it may have been replaced, and its files changed.

The bitmaps of a large ledger take up to 256 MiB, and work with all of them up to seconds: one such ledger at a time is
looked at in a process, and the work is done beside the event loop (`beside_loop`).

Source: docs/protocol/auto-recovery.md#verdicts. Not its job: the consequences (`verdicts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from pyroaring import BitMap64

from bookgate.bookie.replication.copies.fragments import complete_fragments, is_large
from bookgate.bookie.replication.copies.verdicts import Copies, Unknown, lacking, may_be_another, missing_twice
from bookgate.ledger.metadata import LedgerMetadata

P = ParamSpec("P")
T = TypeVar("T")

_ASK_AGAIN_SECONDS = 2.0
"""Seconds between the two responses that together prove an entry missing."""
_TIMES_ASKED_AGAIN = 3
"""Maximum number of repetitions; a bookie that is another process each time is unknown."""

Ask = Callable[[str, BitMap64], Awaitable[Copies]]
"""Asks a bookie which entries of the ledger it holds, given the ids that it should hold."""


_large: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""One lock per event loop, under which a large ledger is looked at."""


async def look(metadata: LedgerMetadata, ask: Ask) -> dict[str, Copies]:
    """Determines the copies on each bookie of a ledger."""
    if not is_large(metadata):
        return await _look(metadata, ask)
    async with _large.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await _look(metadata, ask)


async def beside_loop(metadata: LedgerMetadata, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Does pure work with the bitmaps of a ledger, for a large one in a thread: it takes up to seconds.

    Between any two operations on bitmaps, of tens of milliseconds at most, the event loop gets its turn.
    """
    if not is_large(metadata):
        return work(*arguments, **options)
    return await asyncio.to_thread(work, *arguments, **options)


async def _look(metadata: LedgerMetadata, ask: Ask) -> dict[str, Copies]:
    members = [bookie_id for fragment in metadata.fragments for bookie_id in fragment.ensemble]
    found = await _ask_all(metadata, list(dict.fromkeys(members)), ask)
    doubted = await beside_loop(metadata, lacking, metadata, found)
    for _ in range(_TIMES_ASKED_AGAIN):
        if not doubted:
            return found
        await asyncio.sleep(_ASK_AGAIN_SECONDS)
        again = await _ask_all(metadata, doubted, ask)
        doubted = [name for name in doubted if may_be_another(found[name], again[name])]
        found |= {
            name: state if name in doubted else missing_twice(found[name], state) for name, state in again.items()
        }
    return found | {name: Unknown(f"bookie {name} is started again and again") for name in doubted}


async def _ask_all(metadata: LedgerMetadata, bookie_ids: Sequence[str], ask: Ask) -> dict[str, Copies]:
    due = await beside_loop(metadata, _due, metadata, bookie_ids)
    answers = await asyncio.gather(*(ask(bookie_id, due[bookie_id]) for bookie_id in bookie_ids))
    return dict(zip(bookie_ids, answers, strict=True))


def _due(metadata: LedgerMetadata, bookie_ids: Sequence[str]) -> dict[str, BitMap64]:
    """The ids that each of the bookies should hold."""
    due = {bookie_id: BitMap64() for bookie_id in bookie_ids}
    for fragment in complete_fragments(metadata):
        for index, member in enumerate(fragment.ensemble):
            if member in due:
                due[member] |= fragment.due(index)
    return due
