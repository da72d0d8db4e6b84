"""Publishes the progress of one worker in the store: one record per process, written every few seconds.

Without anything to report there is no record. An unchanged record is renewed periodically, so that it does not look
like that of a dead process. The first record of a process removes those of processes that were killed long ago.

Source: docs/protocol/auto-recovery.md#progress. Not its job: the content (`progress`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from bookgate.ledger.errors import BKException
from bookgate.ledger.replication_progress import KEY_PREFIX, RENEWED_SECONDS, WorkerProgress, encode, forget_the_gone
from bookgate.ledger.replication_store import ANY_VERSION, RecordKind, ReplicationMetadata
from bookgate.runtime.background import keep_running
from bookgate.runtime.clock import now_ms
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

_WRITTEN_SECONDS = 5.0


class ProgressRecord:
    """See the module. Call `start`, and `stop` before the metadata store is closed."""

    def __init__(self, metadata: ReplicationMetadata, name: str, tell: Callable[[], WorkerProgress | None]) -> None:
        """Creates the object; nothing is written yet.

        Args:
            metadata: The store of auto-recovery.
            name: A unique name of the process.
            tell: Returns the current report, if any.
        """
        self._metadata = metadata
        self._key = KEY_PREFIX + name
        self._tell = tell
        self._written: WorkerProgress | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts writing; the store need not be reachable yet."""
        self._keeping = keep_running("progress of repairs", self._keep)

    async def stop(self) -> None:
        """Removes the record."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        with suppress(BKException, TimeoutError):  # the record then expires
            await self._write(None)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_WRITTEN_SECONDS)
            try:
                await self._write(self._tell())
            except (BKException, TimeoutError) as error:
                log_event(_log, "progress_not_written", logging.WARNING, error=error)

    async def _write(self, told: WorkerProgress | None) -> None:
        if told is None:
            if self._written is not None:
                await self._metadata.remove_record(RecordKind.PROGRESS, self._key)
                self._written = None
            return
        if self._written is None:
            await forget_the_gone(self._metadata, now_ms())
        elif _says(told) == _says(self._written) and told.time_ms - self._written.time_ms < 1000 * RENEWED_SECONDS:
            return
        self._written = told
        await self._metadata.write_record(RecordKind.PROGRESS, self._key, encode(told), ANY_VERSION)


def _says(told: WorkerProgress) -> WorkerProgress:
    """The report without its times, for comparison."""
    seen = told.endangered
    return replace(told, time_ms=0, endangered=None if seen is None else replace(seen, listed_ms=0))
