"""Writes and removals of ledgers by a caller, whose permission depends on the stored metadata.

The ledger is looked at first; the change then applies to exactly this version of this incarnation, so that owner,
state, password and format are those that were looked at. If the store has another ledger by then, it is looked at anew.
A write or removal with another expected version than the stored one is rejected as a conflict, whichever of the
caller's actions it would have been: the ledger that has the expected version by then may be another owner's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bookgate.gateway.services.caller import Caller, caller, ledger_resource
from bookgate.gateway.services.encoded_responses import EncodedLedger
from bookgate.gateway.services.ledger_access import (
    action_of_write,
    owner_of_metadata,
    to_be_written,
    with_stored_password,
)
from bookgate.gateway.services.metadata_cache import MetadataCache
from bookgate.ledger.errors import MetadataVersionException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import from_format
from bookgate.ledger.metadata_store import LedgerManagerFactory, made_anew
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataRequest
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Reach


@dataclass(frozen=True, slots=True)
class Seen:
    """A ledger as this process saw it in one look: what a write is decided on, and which ledger the write is for."""

    ledger_id: LedgerId
    version: int
    format_version: int
    incarnation: int | None
    metadata: Callable[[], LedgerMetadata]

    @classmethod
    def of_record(cls, record: LedgerRecord) -> Seen:
        metadata = record.metadata
        return cls(record.ledger_id, record.version, metadata.format_version, record.incarnation, lambda: metadata)

    @classmethod
    def of_encoded(cls, ledger: EncodedLedger) -> Seen:
        """What the cache has, decoded only if needed."""
        form = ledger.format_version
        return cls(
            ledger.ledger_id,
            ledger.version,
            form,
            ledger.incarnation,
            lambda: from_format(ledger.response().metadata, form),
        )

    def is_named_by(self, request: LedgerMetadataRequest) -> bool:
        """Whether this is the incarnation that the request names, if it names any and the store tells."""
        return not request.HasField("incarnation") or self.incarnation in (None, request.incarnation)


class CheckedChanges:
    """See the module. One per gateway."""

    def __init__(self, factory: LedgerManagerFactory, cache: MetadataCache) -> None:
        self._factory = factory
        self._cache = cache

    async def seen(self, ledger_id: LedgerId, request: LedgerMetadataRequest, *, anew: bool) -> Seen:
        """The ledger that a write is decided on: as the cache has it if that is the expected version, else as the store
        has it. `anew`: as the store has it now, whatever this process or a lagging replica knows.

        Raises NoSuchLedgerExistsOnMetadataServerException, also if `anew` and another ledger has the id than the one
        that the request names.
        """
        if anew:
            self._cache.changed_here(ledger_id)
            await self._factory.catch_up(None)
            found = Seen.of_record(await self._factory.ledger_manager.read(ledger_id))
            if not found.is_named_by(request):
                raise made_anew(ledger_id)
            return found
        known = self._cache.peek(ledger_id)
        if known is not None and known.version == request.expected_version:
            return Seen.of_encoded(known)
        return Seen.of_record(await self._read(ledger_id, request.expected_version))

    def to_write(
        self, seen: Seen, request: LedgerMetadataRequest, metadata: LedgerMetadata, *, charge: bool = True
    ) -> tuple[LedgerMetadata, Action]:
        """Determines the metadata to write to the ledger that was seen, in its format version, which rewrites keep and
        the client does not know; and the action that this write is. `charge`: it counts for the caller's rate.

        Raises AccessDeniedException, OverLimitException, IncorrectParameterException for a change of the gateway's own
        custom metadata, MetadataVersionException.
        """
        who, ledger_id = caller(), seen.ledger_id
        metadata, action = replace(metadata, format_version=seen.format_version), Action.LEDGER_WRITE
        if who is None and not request.password_withheld:
            return metadata, action
        if seen.version != request.expected_version:
            if who is not None:
                _require_one(who, ledger_id, seen.metadata())
            raise _conflict(ledger_id, seen.version, request.expected_version)
        stored = seen.metadata()
        if who is None:
            return with_stored_password(metadata, stored), action
        action = action_of_write(metadata, stored)
        who.require_ledger(action, ledger_id, owner_of_metadata(stored), request.request_token)
        if charge:
            who.take("changes_per_second")
        return to_be_written(metadata, stored), action

    async def remove(self, ledger_id: LedgerId, version: int | None) -> None:
        """Removes the ledger if the caller may. Raises as `LedgerManager.remove`, and AccessDeniedException."""
        manager, who = self._factory.ledger_manager, caller()
        if who is None:
            await manager.remove(ledger_id, version)
            return
        whole = who.require_some(Action.LEDGER_DELETE, ledger_id.scope_id) is Reach.ALL
        who.take("changes_per_second")
        if whole:
            await manager.remove(ledger_id, version)
            return
        while True:
            record = await self._read(ledger_id, version)
            who.require_ledger(Action.LEDGER_DELETE, ledger_id, owner_of_metadata(record.metadata))
            if version is not None and version != record.version:
                raise _conflict(ledger_id, record.version, version)
            try:
                # Only this version, whose owner is known: another one may be of a new ledger of another owner.
                await manager.remove_record(record)
            except MetadataVersionException:
                if version is not None:
                    raise
            except NoSuchLedgerExistsOnMetadataServerException:
                # It is gone, or this replica lags and another ledger has its id: the next look tells.
                await self._factory.catch_up(None)
            else:
                return

    async def remove_incarnation(self, ledger_id: LedgerId, version: int | None, incarnation: int) -> None:
        """Removes the ledger if the caller may and this incarnation has the id. Raises as `remove`."""
        manager, who = self._factory.ledger_manager, caller()
        if who is not None:
            who.require_some(Action.LEDGER_DELETE, ledger_id.scope_id)
            who.take("changes_per_second")
        await self._factory.catch_up(None)
        record = await manager.read(ledger_id)
        if who is not None:
            who.require_ledger(Action.LEDGER_DELETE, ledger_id, owner_of_metadata(record.metadata))
        if record.incarnation not in (None, incarnation):
            raise made_anew(ledger_id)
        if version not in (None, record.version):
            raise _conflict(ledger_id, record.version, version)
        await manager.remove_record(record)

    async def _read(self, ledger_id: LedgerId, expected_version: int | None) -> LedgerRecord:
        """Reads the ledger, and once more if this is not the expected version: a replica of the store may lag.

        Raises NoSuchLedgerExistsOnMetadataServerException.
        """
        manager = self._factory.ledger_manager
        try:
            record = await manager.read(ledger_id)
        except NoSuchLedgerExistsOnMetadataServerException:
            record = None
        if record is not None and expected_version in (None, record.version):
            return record
        await self._factory.catch_up(None)
        return await manager.read(ledger_id)


def _conflict(ledger_id: LedgerId, version: int, expected_version: int | None) -> MetadataVersionException:
    return MetadataVersionException(f"ledger {ledger_id} is at version {version}, not at {expected_version}")


def _require_one(who: Caller, ledger_id: LedgerId, stored: LedgerMetadata) -> None:
    """Raises AccessDeniedException unless the caller may change this ledger in some way."""
    owner = owner_of_metadata(stored)
    if not who.may(Action.LEDGER_RECOVER, ledger_id.scope_id, owner):
        who.require(Action.LEDGER_WRITE, ledger_resource(ledger_id, owner))
