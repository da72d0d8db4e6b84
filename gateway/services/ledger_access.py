"""What a caller may see and write of ledgers' metadata: owners, the gateway's own keys, passwords that are withheld.

Source: docs/protocol/security.md#owners, docs/protocol/security.md#withheld-passwords. Nothing of this happens where
the gateway has no security (`caller()` is None).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace

from bookgate.gateway.services.caller import Caller
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata, LedgerState
from bookgate.ledger.password_check import SALT_BYTES, PasswordCheck
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataResponse
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import PasswordCheck as PasswordCheckMessage
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Reach

_PREFIX = "bookgate."
_CHANGED_BY_CLIENTS = frozenset(("bookgate.writer",))
_CREATED_BY_CLIENTS = frozenset((*_CHANGED_BY_CLIENTS, "bookgate.adopted"))

_SALTS = secrets.token_bytes(32)
"""This process's: a ledger has one salt as long as it lives, so that its answer is made once."""


def owner_of(metadata: LedgerMetadataFormat) -> str | None:
    """The principal that a ledger carries as its owner."""
    for entry in metadata.customMetadata:
        if entry.key == OWNER_KEY:
            return owner_in(entry.value)
    return None


def owner_in(value: bytes | None) -> str | None:
    """The owner as its key has it; None without one, and for what no gateway has written."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def owner_of_metadata(metadata: LedgerMetadata) -> str | None:
    return owner_in(metadata.custom_metadata.get(OWNER_KEY))


def owned_custom_metadata(metadata: LedgerMetadata, who: Caller) -> dict[str, bytes]:
    """Those of a ledger that the caller creates. Raises IncorrectParameterException for a key of the gateway's."""
    mine = str(who.principal).encode()
    custom = dict(metadata.custom_metadata)
    if custom:
        # Who copies a ledger's metadata may leave himself in them.
        named = custom.pop(OWNER_KEY, None)
        wrong = sorted(key for key in custom if key.startswith(_PREFIX) and key not in _CREATED_BY_CLIENTS)
        if wrong or named not in (None, mine):
            raise IncorrectParameterException(
                f"custom metadata {', '.join(wrong) or OWNER_KEY}: keys that begin with {_PREFIX} are the gateway's"
            )
    if who.principal.is_authenticated:
        custom[OWNER_KEY] = mine
    return custom


def to_be_written(metadata: LedgerMetadata, stored: LedgerMetadata) -> LedgerMetadata:
    """Metadata that replace those stored: with the stored password, and the gateway's keys as they are.

    Raises IncorrectParameterException where they were to be changed.
    """
    for key in sorted({*metadata.custom_metadata, *stored.custom_metadata}):
        is_gateways = key.startswith(_PREFIX) and key not in _CHANGED_BY_CLIENTS
        if is_gateways and metadata.custom_metadata.get(key) != stored.custom_metadata.get(key):
            raise IncorrectParameterException(f"custom metadata {key} is the gateway's: it can't be changed")
    return with_stored_password(metadata, stored)


def with_stored_password(metadata: LedgerMetadata, stored: LedgerMetadata) -> LedgerMetadata:
    """A password never changes, and who writes may not have been told it."""
    return replace(metadata, password=stored.password, digest_type=stored.digest_type)


def action_of_write(metadata: LedgerMetadata, stored: LedgerMetadata) -> Action:
    """What a write is: recovery where the ledger goes into it, or is in it."""
    recovers = LedgerState.IN_RECOVERY in (metadata.state, stored.state)
    return Action.LEDGER_RECOVER if recovers else Action.LEDGER_WRITE


def withhold(response: LedgerMetadataResponse) -> LedgerMetadataResponse:
    """Puts a check in the place of the password, if there is one; returns the same message."""
    metadata = response.metadata
    if metadata.HasField("password"):
        name = f"{response.ledger_scope_id}/{response.ledger_id}".encode()
        salt = hmac.digest(_SALTS, name, hashlib.sha256)[:SALT_BYTES]
        check = PasswordCheck.of(metadata.password, salt)
        response.password_check.CopyFrom(PasswordCheckMessage(salt=check.salt, digest=check.digest))
        metadata.password = b""
    return response


class ScopeView:
    """What a caller may see in one scope, asked for many ledgers."""

    __slots__ = ("_name", "_secrets", "whole")

    def __init__(self, who: Caller, scope_id: int, *actions: Action) -> None:
        """`actions`: all of them are needed to see a ledger. Raises AccessDeniedException where none may be seen."""
        reaches = {who.require_some(action, scope_id) for action in actions}
        self.whole = reaches == {Reach.ALL}
        """Whether every ledger may be seen."""
        self._secrets = who.reach(Action.LEDGER_SECRET, scope_id)
        self._name = str(who.principal)

    def is_same(self, other: ScopeView) -> bool:
        """Whether both show the same, to one caller."""
        return (self.whole, self._secrets) == (other.whole, other._secrets)

    def shows(self, owner: str | None) -> bool:
        """Whether a ledger of this owner may be seen."""
        return self.whole or owner == self._name

    @property
    def shows_passwords(self) -> bool:
        """Of every ledger."""
        return self._secrets is Reach.ALL

    def shows_password(self, owner: str | None) -> bool:
        """Of a ledger of this owner."""
        return self._secrets is Reach.ALL or (self._secrets is Reach.OWNED and owner == self._name)
