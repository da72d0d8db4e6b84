"""Another bookie id in the metadata of all ledgers that name an old one: for a bookie that keeps its data.

Each ledger is changed by compare-and-set, so that what its writer does meanwhile stands. No entry is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from bookgate.ledger.bookie_info import check_bookie_id
from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    IncorrectParameterException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerRecord
from bookgate.ledger.replication_control import find_bookie, records_of_all_scopes
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.metadata_cas import update


@dataclass(frozen=True, slots=True)
class BookieRenaming:
    """What a run over all ledgers did."""

    looked_at: int
    named: int
    """Ledgers that named the old id."""
    changed: int
    failed: tuple[tuple[LedgerId, BKException], ...]
    """Ledgers that name it still, and why."""


async def rename_bookie(
    factory: LedgerManagerFactory,
    config: ClientConfig,
    old: str,
    new: str,
    *,
    limit: int | None = None,
    rate: float = 5.0,
    dry_run: bool = False,
    on_looked_at: Callable[[int], None] = lambda _number: None,
) -> BookieRenaming:
    """See `Admin.rename_bookie`."""
    check_bookie_id(new)
    if rate <= 0:
        raise IncorrectParameterException(f"a rate of {rate} ledgers a second changes none; give one above 0")
    found = await find_bookie(factory, old)
    if found is not None and found.registered:
        raise IllegalOpException(f"bookie {old} is registered; stop it before ledgers name another id for its data")
    run = _Run(factory, config, old, new, limit, 0.0 if dry_run else 1 / rate, dry_run)
    await run.over_all(on_looked_at)
    return BookieRenaming(run.looked_at, run.named, run.changed, tuple(run.failed))


class _Run:
    def __init__(
        self,
        factory: LedgerManagerFactory,
        config: ClientConfig,
        old: str,
        new: str,
        limit: int | None,
        pause: float,
        dry_run: bool,
    ) -> None:
        self._manager = factory.ledger_manager
        self._retries = config.retries
        self._old, self._new = old, new
        self._limit = limit
        self._pause = pause
        self._dry_run = dry_run
        self.looked_at = self.named = self.changed = 0
        self.failed: list[tuple[LedgerId, BKException]] = []

    async def over_all(self, on_looked_at: Callable[[int], None]) -> None:
        async for page in records_of_all_scopes(self._manager):
            for record in page:
                if self._limit is not None and self.named >= self._limit:
                    return
                self.looked_at += 1
                if self._old in record.metadata.bookies:
                    await self._change(record)
            on_looked_at(self.looked_at)

    async def _change(self, record: LedgerRecord) -> None:
        self.named += 1
        if self._dry_run:
            return
        try:
            await update(self._manager, record, self._renamed, self._retries)
            self.changed += 1
        except NoSuchLedgerExistsOnMetadataServerException:
            # Deleted meanwhile: nothing names the old id any more.
            self.named -= 1
        except BKException as error:
            self.failed.append((record.ledger_id, error))
        await asyncio.sleep(self._pause)

    def _renamed(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        fragments = tuple(
            replace(each, ensemble=tuple(self._new if bookie == self._old else bookie for bookie in each.ensemble))
            for each in metadata.fragments
        )
        if any(len(set(each.ensemble)) < len(each.ensemble) for each in fragments):
            raise IllegalOpException(f"an ensemble has {self._new} already; it would hold two copies")
        return None if fragments == metadata.fragments else replace(metadata, fragments=fragments)
