"""Runs the ensemble changes of one writer: placement, the compare-and-set, and the result for `core.writing`.

One task runs during a change. While the metadata store is unreachable the change is repeated until
`ensemble_change_timeout_seconds`; appends wait that long, then the ledger ends with MetaStoreException (a change that
was stored anyway does no harm: recovery reads either ensemble). A bookie that failed this ledger is not chosen again
for `failed_bookie_interval_seconds`. Members that could not be replaced are tried again after that interval, or
replaced if a bookie is available by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from bookgate.ledger.errors import BKException, MetaStoreException, NotEnoughBookiesException, WriteException
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.runtime.logs import log_bug, log_event
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.ensemble_change import Failures, Replacements, change_ensemble, refusal, still_failed
from bookgate.thinclient.core.placement import EnsembleRequest
from bookgate.thinclient.core.writing import Changed, LedgerWriter, WriterRules
from bookgate.thinclient.gateways.retry_policy import doubling
from bookgate.thinclient.handles.context import ClientContext
from bookgate.thinclient.handles.metadata_cas import update

_log = logging.getLogger(__name__)


def writer_rules(config: ClientConfig, deferred_sync: bool = False) -> WriterRules:
    """The writer's rules for failures according to the settings."""
    return WriterRules(
        config.delay_ensemble_change, config.require_replacement, config.max_ensemble_changes, deferred_sync
    )


async def find_replacements(
    context: ClientContext,
    record: LedgerRecord,
    ensemble: tuple[str, ...],
    failed: Failures,
    avoid: set[str],
) -> dict[int, str]:
    """Chooses replacements for failed bookies, as far as bookies are available.

    Raises MetaStoreException if discovery does not respond.
    """
    members = list(ensemble)
    found: dict[int, str] = {}
    request = EnsembleRequest.of(record.metadata)
    for index in still_failed(ensemble, failed):
        try:
            with context.metrics.timed("bookie_watcher_REPLACE_BOOKIE_TIME"):
                bookie_id = await context.placement.replace_bookie(request, members, index, avoid, needs=record.needs)
        except NotEnoughBookiesException:
            continue
        found[index] = members[index] = bookie_id
    return found


class RecentFailures:
    """The bookies that failed recently."""

    def __init__(self, interval: float, clock: Callable[[], float]) -> None:
        self._interval = interval
        self._clock = clock
        self._failed_at: dict[str, float] = {}

    def note(self, bookie_id: str) -> None:
        self._failed_at[bookie_id] = self._clock()

    @property
    def bookies(self) -> set[str]:
        """The bookies that failed within the last interval."""
        since = self._clock() - self._interval
        self._failed_at = {bookie: at for bookie, at in self._failed_at.items() if at > since}
        return set(self._failed_at)


class EnsembleChanger:
    """The ensemble changes of one writer."""

    def __init__(
        self,
        context: ClientContext,
        writer: LedgerWriter,
        record: LedgerRecord,
        changed: Callable[[Changed], None],
        failed: Callable[[BKException], None],
    ) -> None:
        self.record = record
        """The newest metadata that this writer knows."""
        self._context = context
        self._writer = writer
        self._changed = changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._failures = RecentFailures(context.config.failed_bookie_interval_seconds, self._loop.time)
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._last_error: BKException | None = None
        self._stopped = False

    def start(self) -> None:
        """Replaces the writer's failed members, now or after the current change."""
        if self._task is None and not self._stopped:
            self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Starts no change from now on."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None and self._task is not asyncio.current_task(self._loop):
            self._task.cancel()

    def client_closed(self, error: BKException) -> None:
        """Ends the writer with its client; the ledger stays open in the metadata."""
        self._failed(error)

    @property
    def pending_adds(self) -> int:
        """Appends of the writer not yet acknowledged."""
        return self._writer.pending_count

    async def _run(self) -> None:
        limit = self._context.config.ensemble_change_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await self._change()
        except TimeoutError:
            reason = self._last_error or "the metadata store gave no answer"
            self._failed(
                MetaStoreException(
                    f"ledger {self.record.ledger_id} takes no more entries: its ensemble could not be changed within "
                    f"{limit:g} s ({reason}). Open it with recovery, and write on in a new one",
                    ledger_id=self.record.ledger_id,
                    bookies=self._writer.failed_bookies,
                )
            )
        except BKException as error:
            self._failed(error)
        except Exception as error:  # an error of a driver: for the application, not for the event loop
            self._end_with(error)
        finally:
            self._task = None
        if self._writer.change_wanted:
            self.start()

    def _end_with(self, error: Exception) -> None:
        """Ends the writer with an error that nobody foresaw: its adds would wait for ever."""
        log_bug(_log, "ensemble_change", error, state="failed", ledger=self.record.ledger_id)
        self._failed(WriteException(f"ledger {self.record.ledger_id}: the ensemble could not be changed: {error}"))

    async def _change(self) -> None:
        while True:
            failed = self._writer.begin_change()
            for bookie_id in failed.values():
                self._failures.note(bookie_id)
            await self._store(failed)
            if self._writer.error is not None:
                return
            if not self._writer.change_wanted:
                break
        before = self._writer.ensemble
        after = self.record.metadata.last_fragment.ensemble
        self._log_change(before, after)
        self._changed(self._writer.finish_change(after))
        self._retry_later()

    async def _store(self, failed: Failures) -> None:
        """Repeats the change until it is stored; the caller's timeout limits it."""
        retries = self._context.config.retries
        pauses = doubling(retries.ensemble_change_first_pause_seconds, retries.ensemble_change_longest_pause_seconds)
        while True:
            try:
                return await self._try_to_store(failed)
            except MetaStoreException as error:
                self._last_error = error
                await asyncio.sleep(next(pauses))

    async def _try_to_store(self, failed: Failures) -> None:
        ensemble = self.record.metadata.last_fragment.ensemble
        avoid = self._failures.bookies | set(failed.values())
        found = await find_replacements(self._context, self.record, ensemble, failed, avoid)
        first_entry_id = self._writer.last_add_confirmed + 1
        transform = change_ensemble(self.record.ledger_id, failed, found, first_entry_id)
        self.record = await update(self._context.ledger_manager, self.record, transform, self._context.config.retries)
        lost = refusal(self.record.ledger_id, self.record.metadata)
        if lost is not None:
            raise lost

    def _log_change(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        ledger_id, failed = self.record.ledger_id, self._writer.failed_bookies
        if before != after:
            self._context.metrics.count("NUM_ENSEMBLE_CHANGE")
            first = self.record.metadata.last_fragment.first_entry_id
            log_event(
                _log,
                "ensemble_changed",
                ledger=ledger_id,
                first_entry=first,
                before=",".join(before),
                after=",".join(after),
            )
        elif failed:
            log_event(_log, "ensemble_not_changed", logging.WARNING, ledger=ledger_id, failed=",".join(failed))

    # Members that could not be replaced

    def _retry_later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._writer.failed_bookies and self._writer.error is None and not self._stopped:
            self._retry = self._loop.call_later(self._context.config.failed_bookie_interval_seconds, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        if self._task is None and not self._stopped and self._writer.error is None:
            self._task = self._loop.create_task(self._try_again())

    async def _try_again(self) -> None:
        """Replaces failed members if they may be, and bookies are available now, else writes to them again."""
        try:
            ensemble = self._writer.ensemble
            out = {i: b for i, b in enumerate(ensemble) if b in self._writer.failed_bookies}
            replaceable = {i: b for i, b in out.items() if i in self._writer.replaceable}
            avoid = self._failures.bookies | set(out.values())
            found = await find_replacements(self._context, self.record, ensemble, replaceable, avoid)
        except Exception as error:  # including errors of a policy
            log_event(_log, "ensemble_not_changed", ledger=self.record.ledger_id, error=error)
            self._retry_later()
            found = {}
            out = {}
        finally:
            self._task = None
        try:
            self._replace_or_readmit(found, out)
        except Exception as error:
            self._end_with(error)

    def _replace_or_readmit(self, found: Replacements, out: Failures) -> None:
        if found and not self._writer.changing:
            self._writer.want_change()
        if self._writer.change_wanted:  # another bookie may have failed meanwhile
            self.start()
        elif out:
            resend = [again for index in out for again in self._writer.readmit(index)]
            self._changed(Changed(resend, (), ()))
