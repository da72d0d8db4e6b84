"""The writer of a ledger with a guaranteed write quorum (docs/protocol/client-protocol.md#guaranteed-write-quorum).

An append returns at ack quorum, as in every ledger. The handle keeps the entry until its whole write set has stored it,
and closes the ledger only then. The window counts kept entries as retained, so appends wait while too many are kept.
After an error in the body of `async with` the wait for missing copies is bounded, since the caller must hear of the
error; then the ledger is left open, for recovery.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from bookgate.ledger.errors import WriteException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.guaranteed_writing import GuaranteedLedgerWriter
from bookgate.thinclient.core.writing import Changed, Member, PendingAdd, WriterRules
from bookgate.thinclient.handles.context import ClientContext, LedgerSecrets
from bookgate.thinclient.handles.patience import end_after_error
from bookgate.thinclient.handles.write_handle import WriteHandle


def writer_of(
    context: ClientContext,
    record: LedgerRecord,
    secrets: LedgerSecrets,
    *,
    deferred_sync: bool = False,
    id_given: bool | None = None,
) -> WriteHandle:
    """The writer of an ordinary ledger, by what its metadata say; arguments as for `BaseWriteHandle`."""
    if record.metadata.guaranteed_write_quorum:
        return GuaranteedWriteHandle(context, record, secrets, id_given=id_given)
    return WriteHandle(context, record, secrets, deferred_sync=deferred_sync, id_given=id_given)


class GuaranteedWriteHandle(WriteHandle):
    """The one writer of a ledger with a guaranteed write quorum: a `WriteHandle` whose `last_add_confirmed` is the last
    entry that is on its whole write set, as for readers. `close` waits until that is the last entry.
    """

    _writer: GuaranteedLedgerWriter

    def __init__(
        self, context: ClientContext, record: LedgerRecord, secrets: LedgerSecrets, *, id_given: bool | None = None
    ) -> None:
        self._kept: deque[PendingAdd] = deque()
        """Adds that are not fully replicated."""
        self._replicated: asyncio.Future[None] | None = None
        super().__init__(context, record, secrets, id_given=id_given)

    def _make_writer(self, record: LedgerRecord, rules: WriterRules) -> GuaranteedLedgerWriter:
        metadata = record.metadata
        return GuaranteedLedgerWriter(
            record.ledger_id,
            metadata.last_fragment.ensemble,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            rules,
        )

    async def _close_after_error(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await end_after_error(close, self._leave_open, self._add_timeout)

    def _leave_open(self) -> None:
        """Ends a writer that still waits for copies."""
        writer = self._writer
        if writer.error is None and (writer.pending_count or not writer.fully_replicated):
            self._end(
                WriteException(
                    f"ledger {self.ledger_id} takes no more entries, and was not closed after an error in the "
                    f"application's block: entries from {writer.last_add_confirmed + 1} on are not on their whole "
                    f"write sets. Everything acknowledged (up to entry {writer.sequence_head}) is kept: open the "
                    "ledger with recovery, and write on in a new one",
                    ledger_id=self.ledger_id,
                    bookies=writer.failed_bookies,
                )
            )

    def _send(self, adds: Sequence[PendingAdd], payloads: Sequence[bytes]) -> None:
        super()._send(adds, payloads)
        self._kept += adds

    def _on_stored(self, member: Member, adds: Sequence[PendingAdd]) -> None:
        super()._on_stored(member, adds)
        self._let_replicated_go()
        if self._writer.change_wanted:
            self._changer.start()

    def _on_changed(self, changed: Changed) -> None:
        super()._on_changed(changed)
        self._let_replicated_go()

    def _ended(self, failed: Sequence[PendingAdd]) -> None:
        super()._ended(failed)
        while self._kept:
            self._window.release(self._kept.popleft().size)
        self._wake()

    def _let_go(self, size: int, count: int = 1) -> None:
        """Nothing: bookies that have yet to join may need the adds."""

    def _keep_again(self, add: PendingAdd) -> None:
        """Nothing: it was never let go."""

    def _let_replicated_go(self) -> None:
        kept, last = self._kept, self._writer.last_add_confirmed
        while kept and kept[0].entry_id <= last:
            self._window.release(kept.popleft().size)
        if self._writer.fully_replicated:
            self._wake()

    def _wake(self) -> None:
        if self._replicated is not None and not self._replicated.done():
            self._replicated.set_result(None)

    async def _wait_until_settled(self) -> None:
        await super()._wait_until_settled()
        if not self._writer.fully_replicated and self._writer.error is None:
            self._replicated = self._loop.create_future()
            await self._replicated
        if not self._writer.fully_replicated and self._writer.error is not None:
            raise self._writer.error.with_traceback(None)
