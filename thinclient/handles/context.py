"""The state that the handles of one client share, and conversions that they have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

from bookgate.ledger.digest import Digest, digest_for, ledger_master_key
from bookgate.ledger.errors import (
    BKException,
    EntryNotConfirmedException,
    IllegalOpException,
    IncorrectParameterException,
    ReadException,
    UnauthorizedAccessException,
    exception_for_status,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_store import LedgerManager, LedgerRecord
from bookgate.ledger.unbounded import may_show
from bookgate.ledger.wire.messages import ReadResponse, Status
from bookgate.thinclient.bookies.pool import V3, BookiePool
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.core.read_health import ReadHealth
from bookgate.thinclient.metrics import ClientMetrics
from bookgate.thinclient.placement.chooser import Placement
from bookgate.thinclient.placement.quarantine import BookieHealth


class Closeable(Protocol):
    """Something that a client ends when it is closed: a writer, a reader, a watch."""

    def client_closed(self, error: BKException) -> None:
        """Ends the object; callers that wait for it get the error."""


CatchUp = Callable[[], Awaitable[None]]
"""Ensures that metadata read afterwards are not older than the call. Raises BKException."""


async def never_behind() -> None:
    """The `CatchUp` of metadata that are always read as they are."""


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The metadata, the bookies and the settings of one client."""

    ledger_manager: LedgerManager
    pool: BookiePool
    config: ClientConfig
    placement: Placement
    metrics: ClientMetrics
    health: BookieHealth
    catch_up: CatchUp = never_behind
    active_handles: WeakKeyDictionary[Closeable, None] = field(default_factory=WeakKeyDictionary)
    """The handles in use, oldest first."""
    read_health: ReadHealth = field(default_factory=ReadHealth)


@dataclass(frozen=True, slots=True)
class LedgerSecrets:
    """The values derived from a ledger's password: the master key for the bookies, and the digest of the entries."""

    master_key: bytes
    digest: Digest

    @classmethod
    def of(cls, metadata: LedgerMetadata, password: bytes, config: ClientConfig) -> LedgerSecrets:
        """Derives the secrets. The oldest metadata have no digest type; the digest type of the settings is then
        used.
        """
        digest_type = metadata.digest_type or DigestType[config.undeclared_digest_type.upper()]
        return cls(ledger_master_key(password), digest_for(digest_type, password))


def secrets_of(record: LedgerRecord, password: bytes, config: ClientConfig) -> LedgerSecrets:
    """The secrets of a ledger.

    Raises UnauthorizedAccessException for a wrong password, IllegalOpException for what protocol v2 does not carry.
    """
    check_protocol(record.ledger_id, config)
    if record.metadata.is_unbounded:
        check_terms(config)
    record = unlocked(record, password, config)
    return LedgerSecrets.of(record.metadata, config.password_of(record.ledger_id.number, password), config)


def unlocked(record: LedgerRecord, password: bytes, config: ClientConfig) -> LedgerRecord:
    """The record with its password, if the gateway withheld that. Raises UnauthorizedAccessException for a wrong
    one.
    """
    if not isinstance(password, bytes):
        raise IncorrectParameterException(f"password is bytes, not {type(password).__name__}: encode it")
    try:
        metadata = record.metadata.with_password(config.password_of(record.ledger_id.number, password))
    except UnauthorizedAccessException:
        raise UnauthorizedAccessException(f"the password of ledger {record.ledger_id} is not the one given") from None
    return record if metadata is record.metadata else replace(record, metadata=metadata)


def ledger_id_of(ledger_id: int | LedgerId | UUID, scope_id: int = 0) -> LedgerId:
    """Converts any form in which applications may give an id. Raises IncorrectParameterException."""
    if isinstance(ledger_id, bool) or not isinstance(ledger_id, int | LedgerId | UUID):
        raise IncorrectParameterException(f"ledger_id is a number, a LedgerId or a UUID, not {ledger_id!r}")
    try:
        if isinstance(ledger_id, UUID):
            ledger_id = LedgerId.from_uuid(ledger_id)
        found = ledger_id if isinstance(ledger_id, LedgerId) else LedgerId(scope_id, ledger_id)
    except ValueError as error:
        raise IncorrectParameterException(str(error)) from error
    if scope_id not in (0, found.scope_id):
        raise IncorrectParameterException(f"ledger {found} is in scope {found.scope_id}, not in scope {scope_id}")
    return found


def check_protocol(ledger_id: LedgerId, config: ClientConfig) -> None:
    """Raises IllegalOpException for a scoped ledger in a client of protocol v2, which has no scopes."""
    if ledger_id.scope_id and config.wire_protocol != V3:
        raise IllegalOpException(
            f"ledger {ledger_id} has a scope, which protocol v2 does not carry; use a client with wire_protocol v3"
        )


def check_term(record: LedgerRecord, entry_id: int, bookie_id: str, response: ReadResponse) -> None:
    """Raises EntryNotConfirmedException for an entry that the reader's metadata are too old for (`may_show`)."""
    if not may_show(record.metadata, entry_id, response.term):
        raise EntryNotConfirmedException(
            f"bookie {bookie_id} is at term {response.term} of ledger {record.ledger_id}: another client has taken it "
            f"over, and entry {entry_id} may have been written elsewhere since"
        )


def check_terms(config: ClientConfig) -> None:
    """Raises IllegalOpException in a client of protocol v2, which has no terms."""
    if config.wire_protocol != V3:
        raise IllegalOpException("unbounded ledgers need wire_protocol v3: v2 carries no terms")


def status_error(
    status: int, bookie_id: str, ledger_id: LedgerId, what: str, default: type[BKException] = ReadException
) -> BKException:
    """The exception for a bookie's response with an error status; `default` for statuses that depend on the
    operation.
    """
    try:
        name = Status(status).name
    except ValueError:
        name = f"status {status}"
    return exception_for_status(status, default, f"bookie {bookie_id} answered {name} to {what} of ledger {ledger_id}")
