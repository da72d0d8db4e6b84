"""The metadata store for a client that works for a caller of HTTP: it does what the caller may do, and nothing else.

Each call asks the policy for the ledger that it concerns, as a gateway does for a client of its own: who may read,
create, write or delete a ledger over gRPC may do it here. A change applies to the version whose owner was looked at, or
not at all. What the caller creates is the caller's.

Not its job: rates (the route takes from them once for all that it does); entries, which the route asks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bookgate.gateway.http.caller import Caller
from bookgate.gateway.http.routes.ledgers import remove_ledger
from bookgate.gateway.services.ledger_access import action_of_write
from bookgate.ledger.errors import MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManagerFactory, LedgerMetadataListener, LedgerRecord, require_same
from bookgate.runtime.security.actions import Action


class CallersLedgers:
    """As much of a `LedgerManager` as a client needs. What is not here can't get by without being asked about."""

    def __init__(self, factory: LedgerManagerFactory, caller: Caller) -> None:
        self._factory = factory
        self._ledgers = factory.ledger_manager
        self._caller = caller

    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """Raises as `LedgerManager.read`; HttpError where the caller may not."""
        record = await self._ledgers.read(ledger_id)
        self._caller.check_ledger(Action.LEDGER_READ, record)
        return record

    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Raises as `LedgerManager.create`; HttpError where the caller may not."""
        scope_id = 0 if ledger_id is None else ledger_id.scope_id
        self._caller.check_creation(scope_id, f"scope:{scope_id}" if ledger_id is None else f"ledger:{ledger_id}")
        if (owner := self._caller.owner) is not None:
            metadata = replace(metadata, custom_metadata={**metadata.custom_metadata, OWNER_KEY: owner.encode()})
        return await self._ledgers.create(ledger_id, metadata)

    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Raises as `LedgerManager.write`; HttpError where the caller may not."""
        try:
            return await self._write(ledger_id, metadata, expected_version)
        except NoSuchLedgerExistsOnMetadataServerException:
            # It is gone, or a replica of the store that lags has shown a former ledger of the id.
            await self._factory.catch_up(None)
            return await self._write(ledger_id, metadata, expected_version)

    async def _write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        stored = await self._ledgers.read(ledger_id)
        await self._require_write(stored, metadata, expected_version)
        async with self._caught_up_at_conflicts():
            return await self._ledgers.write_to(stored, metadata)

    async def write_once(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Raises as `LedgerManager.write_once`; HttpError where the caller may not."""
        return await self.write(ledger_id, metadata, expected_version)

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        """Raises as `LedgerManager.write_to`; HttpError where the caller may not."""
        stored = await self._same(record)
        await self._require_write(stored, metadata, record.version)
        async with self._caught_up_at_conflicts():
            return await self._ledgers.write_to(stored, metadata)

    async def _same(self, record: LedgerRecord) -> LedgerRecord:
        """The record's ledger as it is stored. Raises NoSuchLedgerExistsOnMetadataServerException, also if another one
        has its id, as a replica of the store that does not lag has it.
        """
        stored = await self._ledgers.read(record.ledger_id)
        if stored.is_another(record) or stored.version != record.version:
            await self._factory.catch_up(None)
            stored = await self._ledgers.read(record.ledger_id)
            require_same(record, stored)
        return stored

    async def _require_write(self, stored: LedgerRecord, metadata: LedgerMetadata, expected_version: int) -> None:
        self._caller.check_ledger(action_of_write(metadata, stored.metadata), stored)
        async with self._caught_up_at_conflicts():
            _require_version(stored, expected_version)

    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Raises as `LedgerManager.remove`; HttpError where the caller may not."""
        if expected_version is None:
            await remove_ledger(self._factory, self._caller, ledger_id)
            return
        for last in (False, True):
            stored = await self._ledgers.read(ledger_id)
            self._caller.check_ledger(Action.LEDGER_DELETE, stored)
            try:
                async with self._caught_up_at_conflicts():
                    _require_version(stored, expected_version)
                    await self._ledgers.remove_record(stored)
            except NoSuchLedgerExistsOnMetadataServerException:
                # It is gone, or a replica of the store that lags has shown a former ledger of the id.
                if last:
                    raise
                await self._factory.catch_up(None)
            else:
                return

    async def remove_record(self, record: LedgerRecord) -> None:
        """Raises as `LedgerManager.remove_record`; HttpError where the caller may not."""
        stored = await self._same(record)
        self._caller.check_ledger(Action.LEDGER_DELETE, stored)
        async with self._caught_up_at_conflicts():
            _require_version(stored, record.version)
            await self._ledgers.remove_record(stored)

    @asynccontextmanager
    async def _caught_up_at_conflicts(self) -> AsyncIterator[None]:
        """A replica of the store that lags would show the client the same version again."""
        try:
            yield
        except MetadataVersionException:
            await self._factory.catch_up(None)
            raise

    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Tells of a ledger that was read."""
        await self._ledgers.register_listener(ledger_id, listener)

    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Ends that."""
        await self._ledgers.unregister_listener(ledger_id, listener)


def _require_version(stored: LedgerRecord, expected_version: int) -> None:
    """Raises MetadataVersionException."""
    if stored.version != expected_version:
        raise MetadataVersionException(
            f"ledger {stored.ledger_id} has version {stored.version} and not {expected_version}"
        )
