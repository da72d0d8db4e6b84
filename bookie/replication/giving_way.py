"""Auto-recovery that is on by default gives way while the auditor is not a process of Bookgate.

States: *unknown*, before the store has said which process is the auditor; *giving way* to an auditor; *taking part*.
Changes are reported to `on_change`; an unreachable store changes nothing. Source:
docs/protocol/auto-recovery.md#by-default. Not its job: the consequences (`auto_recovery`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from bookgate.ledger.errors import BKException
from bookgate.ledger.replication_control import foreign_auditor
from bookgate.ledger.replication_store import ReplicationMetadata
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 15.0


class GivingWay:
    """See the module. Call `start`, and `stop` before the metadata store is closed."""

    def __init__(self, metadata: ReplicationMetadata, on_change: Callable[[bool], None]) -> None:
        """`on_change` is called with whether to give way, for the first time as soon as this is known."""
        self.auditor: str | None = None
        """The auditor to which it gives way."""
        self._metadata = metadata
        self._on_change = on_change
        self._known = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = keep_running("look for another auditor", self._run)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                self._hear(await foreign_auditor(self._metadata))
            except (BKException, TimeoutError) as error:
                log_event(_log, "auto_recovery", logging.WARNING, state="store_out_of_reach", error=error)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def _hear(self, auditor: str | None) -> None:
        if self._known and auditor == self.auditor:
            return
        before, self._known, self.auditor = self.auditor, True, auditor
        if auditor is not None:
            log_event(_log, "auto_recovery", state="gives_way", auditor=auditor)
        elif before is not None:
            log_event(_log, "auto_recovery", state="takes_part", former_auditor=before)
        self._on_change(auditor is not None)
