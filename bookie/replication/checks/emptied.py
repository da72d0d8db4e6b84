"""Deletes the cookies of bookies that were to be emptied and are empty, if that was requested over HTTP.

A cookie is deleted only when a listing that began after the bookie was stopped finds no ledger that names it, and it is
not registered (AR30); if that was requested with force, ledgers that can't leave it, because entries have no copy left,
are given up (AR40). Until then the check is repeated; the record that the bookie is to be emptied is deleted with the
cookie. Source: docs/protocol/auto-recovery.md#auditor.

Not its job: emptying bookies (`auditor`, `worker`), waiting for it (`bookgate bookie decommission`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from bookgate.bookie.replication.checks.office_task import OfficeTask, loop_time
from bookgate.bookie.replication.copies.bookies import Bookies
from bookgate.bookie.replication.ledger_pages import see_all_ledgers
from bookgate.ledger import replication_control as control
from bookgate.ledger.metadata_store import LedgerManagerFactory, Membership
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
_PAUSE_SHARE = 50
"""Pause after a listing, as a multiple of its duration."""
_LONGEST_PAUSE_SECONDS = 3600.0


class EmptiedBookies(OfficeTask):
    """See the module and `OfficeTask`. One per process."""

    name = "cookies of emptied bookies"

    def __init__(
        self,
        factory: LedgerManagerFactory,
        bookies: Bookies,
        membership: Membership | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`look_seconds` is the pause between two checks."""
        super().__init__(factory, bookies, membership, look_seconds, _LONGEST_PAUSE_SECONDS)
        self._look_seconds = look_seconds

    async def _turn(self) -> float | None:
        began = loop_time()
        wanted = await control.cookies_to_delete(self._metadata)
        present = await self._present() if wanted else {}
        stopped = {bookie_id: force for bookie_id, force in wanted.items() if bookie_id not in present}
        if stopped:
            await self._delete_cookies(stopped)
        return max(self._look_seconds, _PAUSE_SHARE * (loop_time() - began))

    async def _delete_cookies(self, stopped: Mapping[str, bool]) -> None:
        """Deletes the cookies of stopped bookies that only given-up ledgers name, or none.

        Raises BKException if a ledger can't be examined.
        """
        await see_all_ledgers(self._factory, self._membership)
        given_up = {
            bookie_id: await control.unrecoverable_at(self._metadata, bookie_id)
            for bookie_id, force in stopped.items()
            if force
        }
        staying: dict[str, list[int]] = {bookie_id: [] for bookie_id in stopped}
        async for page in control.records_of_all_scopes(self._factory.ledger_manager):
            for record in page:
                number = record.ledger_id.number
                for bookie_id in record.metadata.bookies & staying.keys():
                    if number in given_up.get(bookie_id, ()):
                        staying[bookie_id].append(number)
                    else:
                        del staying[bookie_id]
            if not staying:
                return
        for bookie_id, ledgers in sorted(staying.items()):
            had_cookie = await control.remove_emptied(self._factory, bookie_id, ledgers, now_ms())
            log_event(
                _log, "emptied_bookie_removed", emptied=bookie_id, had_cookie=had_cookie, ledgers_given_up=ledgers
            )

    def _out_of_office(self) -> None:
        return
