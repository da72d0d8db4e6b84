"""Carries out a bookie's changes of mode, in its ledger directories and in the metadata store.

The mode itself changes at once, and requests follow it at once; the rest follows in one task, one step at a time:
BOOKIE_STATUS (if persisted), then the registration, which moves between the writable and the read-only list (it is
created in the new list before it is removed from the old one). Changes during that time are not queued: the task
continues until what was reported is the current mode. A BOOKIE_STATUS that no directory takes holds up neither the
registration nor whoever waits for the report: it is written again until one does.

An unreachable store does not end the bookie, which continues to serve reads: the task tries again until the store
responds. Another process with the same bookie id does end it. (Apache BookKeeper stops in both cases.) The registration
manager handles sessions that end: it registers again in the mode reported last.

If the registration disappears from the store for any other reason, a second task notices: it checks every few seconds,
and registers the bookie again until that succeeds. The result of the last check is what the bookie reports of itself
(`registered`). Source: docs/protocol/storage.md#bookie-mode.

Not its job: why the mode changes (`mode`), measuring disks (`disks.monitor`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from bookgate.bookie.mode.mode import BookieMode, BookieStatus, Change, ModeRefusedException
from bookgate.bookie.mode.status_files import read_status, write_status
from bookgate.bookie.system.files import FileSystem
from bookgate.ledger.bookie_info import BookieServiceInfo
from bookgate.ledger.errors import BKException, LedgerExistException
from bookgate.ledger.metadata_store import RegistrationManager
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_bug, log_event

__all__ = ["ModeRefusedException", "StateManager"]

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_OPERATOR_WAITS_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 1.0
"""The first check may read a lagging copy of the store, or find a registration that is just being renewed."""

_UNANSWERED = 2
"""Consecutive checks without a response after which the state of the registration is unknown."""


class ReadOnlyDisabledException(BKException):
    """The bookie would have to be read-only, which its settings do not allow."""


class StateManager:
    """See the module. Belongs to the event loop; files are written in a thread.

    `now_ms` returns wall-clock milliseconds. `on_fatal` is called when the bookie must stop.
    """

    def __init__(
        self,
        mode: BookieMode,
        registration: RegistrationManager,
        status_directories: Sequence[Path],
        *,
        persist: bool,
        now_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
        files: FileSystem,
    ) -> None:
        self._mode = mode
        self._registration = registration
        self._directories = tuple(status_directories) if persist else ()
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._files = files
        self._info: BookieServiceInfo | None = None
        self._registered_read_only: bool | None = False
        """None: unknown, or a change is in progress. A change that failed may have been made, or may still be made."""
        self._persisted: tuple[bool, bool] | None = (False, False)
        """What BOOKIE_STATUS says, or will say soon; None: it is to be written whatever it says."""
        self._persist_later: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = False
        """The store had no registration at the last check, and none was made since."""
        self._unanswered = 0

    @property
    def registered(self) -> bool | None:
        """Whether the store had the bookie's registration at the last check; None if the store did not respond."""
        if self._info is None or self._gone:
            return False
        return True if self._unanswered < _UNANSWERED else None

    def restore(self) -> None:
        """Blocking: restores the persisted mode. Call it before anything else."""
        status = read_status(self._files, self._directories)
        if status is not None:
            self._mode.restore(status)
            self._persisted = (status.read_only, status.manual)

    async def register(self, info: BookieServiceInfo) -> None:
        """Registers in the current mode, and follows the mode from then on. Raises BKException."""
        read_only = self._mode.read_only
        await self._registration.register_bookie(info, read_only=read_only)
        self._info, self._registered_read_only = info, read_only
        self._tasks = [
            keep_running("mode of the bookie", self._follow),
            keep_running("look at the registration", self._look_forever),
        ]
        self._changed.set()

    async def close(self) -> None:
        """Removes the registration."""
        if self._persist_later is not None:
            self._persist_later.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._info is not None:
            bookie_id, self._info = self._info.bookie_id, None
            await self._registration.unregister_bookie(bookie_id)

    def carry_out(self, change: Change) -> None:
        """Reports a change of mode where it must be known, in the background."""
        match change:
            case Change.STOP:
                self._on_fatal(
                    ReadOnlyDisabledException(
                        "the disks have no room and read_only_mode_enabled is off: free space, or enable read-only mode"
                    )
                )
            case Change.TO_READ_ONLY:
                log_event(_log, "mode", logging.WARNING, mode="read-only", reason=self._mode.describe())
            case Change.TO_READ_WRITE:
                log_event(_log, "mode", mode="writable")
        self._settled.clear()
        self._changed.set()

    async def set_by_operator(self, read_only: bool) -> bool:
        """Sets or releases the operator's hold; returns the resulting mode. Waits until it is reported, for a limited
        time.
        """
        self.carry_out(self._mode.set_by_operator(read_only))
        try:
            async with asyncio.timeout(_OPERATOR_WAITS_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            log_event(
                _log,
                "not_registered",
                logging.WARNING,
                note="the mode set by the operator is in force, and is registered later",
            )
        return self._mode.read_only

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                while not await self._tell():
                    pass
            except LedgerExistException as error:
                self._on_fatal(error)
                return
            except Exception:
                self._changed.set()  # what was not reported is reported in the next run
                raise
            if not self._changed.is_set():
                self._settled.set()

    async def _tell(self) -> bool:
        """One step of reporting the mode; True when nothing is left to report."""
        status = (self._mode.read_only, self._mode.manual)
        if self._mode.shutting_down:
            return True
        if status != self._persisted:
            await self._persist(*status)
            return False
        read_only = self._mode.read_only
        if self._info is None or read_only is self._registered_read_only:
            return True
        self._registered_read_only = None
        try:
            await self._registration.register_bookie(self._info, read_only=read_only)
        except BKException as error:
            if isinstance(error, LedgerExistException) and not self._gone:
                raise
            log_event(
                _log, "not_registered", logging.WARNING, mode=_name(read_only), error=error, note="it is tried again"
            )
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        self._registered_read_only = read_only
        self._gone = False
        log_event(_log, "registered", mode=_name(read_only))
        return False

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except BKException as error:
                self._unanswered += 1
                log_event(_log, "registration_not_seen", error=error, note="it is looked at again")
            except Exception as error:
                log_bug(_log, "registration_not_seen", error)

    async def _look(self) -> None:
        """Checks the registration, and has the bookie registered again if the store has lost it. Raises BKException."""
        if await self._stands():
            return
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if await self._stands():
            return
        log_event(
            _log,
            "registration_gone",
            logging.WARNING,
            note="clients do not find this bookie, or find another address under its id; it is registered again",
        )
        self._gone = True
        self._registered_read_only = None
        self._changed.set()

    async def _stands(self) -> bool:
        """Whether the store has what was last registered; true also while a registration is in progress."""
        info, read_only = self._info, self._registered_read_only
        if info is None or read_only is None:
            return True
        found = await self._registration.is_registered(info, read_only=read_only)
        self._unanswered = 0
        # The registration may have changed during the check.
        return found or self._registered_read_only is not read_only

    async def _persist(self, read_only: bool, manual: bool) -> None:
        self._persisted = (read_only, manual)
        loop = asyncio.get_running_loop()
        status = BookieStatus(read_only, manual, self._now_ms())
        if not await loop.run_in_executor(None, write_status, self._files, self._directories, status):
            if self._persist_later is not None:
                self._persist_later.cancel()
            self._persist_later = loop.call_later(_RETRY_SECONDS, self._persist_again)

    def _persist_again(self) -> None:
        self._persisted = None
        self._changed.set()


def _name(read_only: bool) -> str:
    return "read-only" if read_only else "writable"
