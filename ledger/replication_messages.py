"""How the ReplicationService names ledgers: by their ids in scope 0, any other by a message that names the scope, too.

Beside that message the field of scope 0 has an id that no ledger has, so a gateway or a client of before refuses it; it
never takes (scope, id) for (0, id) (D1). Source: docs/protocol/gateway.md#auto-recovery.
"""

from __future__ import annotations

from typing import Protocol

from bookgate.ledger.ledger_id import MAX_UNSCOPED, halves_of, is_number, number_of
from bookgate.ledger.replication_store import Mark
from bookgate.protos.bookkeeper.gateway.v1.replication_service_pb2 import HeldLock, ScopedLedger, StoredMark

_NONE = -1


class NamesLedger(Protocol):
    """A message that names a ledger so."""

    ledger_id: int

    @property
    def scoped(self) -> ScopedLedger: ...


def id_field(number: int) -> int:
    """What the field of scope 0 has for the ledger of this number."""
    return number if number <= MAX_UNSCOPED else _NONE


def scoped_field(number: int) -> ScopedLedger | None:
    """The message for a ledger with a scope; None for one without."""
    if number <= MAX_UNSCOPED or not is_number(number):
        return None
    scope_id, low = halves_of(number)
    return ScopedLedger(ledger_scope_id=scope_id, ledger_id=low)


def number_in(message: NamesLedger) -> int:
    """The number of the ledger that a message names; one that no ledger has where it names none."""
    return number_in_scope(message.scoped) if message.scoped.ledger_scope_id else message.ledger_id


def number_in_scope(ledger: ScopedLedger) -> int:
    """The number of a ledger with a scope."""
    return number_of(ledger.ledger_scope_id, ledger.ledger_id)


def stored_mark(mark: Mark) -> StoredMark:
    """A mark as it is stored."""
    number, content = mark.value.ledger_id, mark.value.encode()
    return StoredMark(ledger_id=id_field(number), version=mark.version, content=content, scoped=scoped_field(number))


def held_lock(number: int, holder: str) -> HeldLock:
    """A lock that somebody holds."""
    return HeldLock(ledger_id=id_field(number), holder=holder, scoped=scoped_field(number))
