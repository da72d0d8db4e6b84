"""The operator's client without asyncio: the names of `Admin`, each call returning when it is done."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, Self, TypeVar

from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata_store import RegisteredBookie
from bookgate.thinclient.administration import admin
from bookgate.thinclient.administration.admin import BookieSpace, RecoveryStatus, Replicas, UnderReplicated
from bookgate.thinclient.blocking.facades import ClientFacade
from bookgate.thinclient.blocking.loop_thread import LoopThread, iterate
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.tools.collection import SuspendedGc
from bookgate.thinclient.tools.draining import DrainingProgress, Emptied
from bookgate.thinclient.tools.renaming import BookieRenaming

Member = TypeVar("Member", bound=Callable[..., Any])


def _as(asynchronous: Callable[..., Any]) -> Callable[[Member], Member]:
    """Documents a call as the asynchronous one."""

    def document(member: Member) -> Member:
        member.__doc__ = asynchronous.__doc__
        return member

    return document


class Admin(ClientFacade[admin.Admin]):
    """An operator's client of one cluster. It may be used from several threads; close it, or use it as a context
    manager.
    """

    @classmethod
    @_as(admin.Admin.connect)
    def connect(
        cls, gateways: str | None = None, config: ClientConfig | None = None, http_token: str | None = None
    ) -> Self:
        thread = LoopThread.acquire()
        try:
            return cls(thread, thread.run(admin.Admin.connect(gateways, config, http_token)))
        except BaseException:
            thread.release()
            raise

    @_as(admin.Admin.close)
    def close(self) -> None:
        self._close_once()

    @_as(admin.Admin.bookies)
    def bookies(self) -> Sequence[RegisteredBookie]:
        return self._run(self._asynchronous.bookies())

    @_as(admin.Admin.bookie_space)
    def bookie_space(self, bookie_id: str) -> BookieSpace:
        return self._run(self._asynchronous.bookie_space(bookie_id))

    @_as(admin.Admin.bookie_state)
    def bookie_state(self, bookie_id: str) -> dict[str, Any]:
        return self._run(self._asynchronous.bookie_state(bookie_id))

    @_as(admin.Admin.set_read_only)
    def set_read_only(self, bookie_id: str, read_only: bool) -> None:
        self._run(self._asynchronous.set_read_only(bookie_id, read_only))

    @_as(admin.Admin.gc_status)
    def gc_status(self, bookie_id: str) -> list[dict[str, Any]]:
        return self._run(self._asynchronous.gc_status(bookie_id))

    @_as(admin.Admin.trigger_gc)
    def trigger_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, force_ledgers: bool = False
    ) -> None:
        self._run(self._asynchronous.trigger_gc(bookie_id, major=major, minor=minor, force_ledgers=force_ledgers))

    @_as(admin.Admin.gc_suspended)
    def gc_suspended(self, bookie_id: str) -> SuspendedGc:
        return self._run(self._asynchronous.gc_suspended(bookie_id))

    @_as(admin.Admin.suspend_gc)
    def suspend_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, ledgers: bool = False
    ) -> SuspendedGc:
        return self._run(self._asynchronous.suspend_gc(bookie_id, major=major, minor=minor, ledgers=ledgers))

    @_as(admin.Admin.resume_gc)
    def resume_gc(
        self, bookie_id: str, *, major: bool = False, minor: bool = False, ledgers: bool = False
    ) -> SuspendedGc:
        return self._run(self._asynchronous.resume_gc(bookie_id, major=major, minor=minor, ledgers=ledgers))

    @_as(admin.Admin.compact_index)
    def compact_index(self, bookie_id: str, paths: Sequence[str] | None = None) -> list[str]:
        return self._run(self._asynchronous.compact_index(bookie_id, paths))

    @_as(admin.Admin.recovery_status)
    def recovery_status(self) -> RecoveryStatus:
        return self._run(self._asynchronous.recovery_status())

    @_as(admin.Admin.enable_recovery)
    def enable_recovery(self, enabled: bool = True) -> bool:
        return self._run(self._asynchronous.enable_recovery(enabled))

    @_as(admin.Admin.set_lost_bookie_delay)
    def set_lost_bookie_delay(self, seconds: int) -> None:
        self._run(self._asynchronous.set_lost_bookie_delay(seconds))

    @_as(admin.Admin.trigger_audit)
    def trigger_audit(self, check: Literal["replicas", "placement", "scrub"] | None = None) -> str:
        return self._run(self._asynchronous.trigger_audit(check))

    @_as(admin.Admin.under_replicated)
    def under_replicated(
        self, missing: str | None = None, not_missing: str | None = None
    ) -> Generator[list[UnderReplicated], None, None]:
        return iterate(self._thread, self._asynchronous.under_replicated(missing, not_missing))

    @_as(admin.Admin.begin_draining)
    def begin_draining(self, bookie_id: str) -> bool:
        return self._run(self._asynchronous.begin_draining(bookie_id))

    @_as(admin.Admin.end_draining)
    def end_draining(self, bookie_id: str) -> bool:
        return self._run(self._asynchronous.end_draining(bookie_id))

    @_as(admin.Admin.draining)
    def draining(self, bookie_id: str) -> DrainingProgress:
        return self._run(self._asynchronous.draining(bookie_id))

    @_as(admin.Admin.decommission)
    def decommission(self, bookie_id: str, *, force: bool = False) -> Emptied:
        return self._run(self._asynchronous.decommission(bookie_id, force=force))

    @_as(admin.Admin.rename_bookie)
    def rename_bookie(
        self, old: str, new: str, *, limit: int | None = None, rate: float = 5.0, dry_run: bool = False
    ) -> BookieRenaming:
        return self._run(self._asynchronous.rename_bookie(old, new, limit=limit, rate=rate, dry_run=dry_run))

    @_as(admin.Admin.replicas)
    def replicas(self, ledger_id: int | LedgerId) -> list[Replicas]:
        return self._run(self._asynchronous.replicas(ledger_id))
