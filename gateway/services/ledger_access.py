"""The parts of ledger metadata that a caller may see and write: owners, the gateway's own keys, withheld passwords.

Source: docs/protocol/security.md#owners, docs/protocol/security.md#withheld-passwords. None of this applies in a
gateway without security (`caller()` is None).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace

from bookgate.gateway.services.caller import Caller
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import GUARANTEED_KEY, OWNER_KEY, LedgerMetadata, LedgerState
from bookgate.ledger.password_check import SALT_BYTES, PasswordCheck
from bookgate.ledger.payload_codec import CODEC_KEY
from bookgate.ledger.streams import CURSOR_KEY, CURSORS_KEY, NAME_KEY, SETTINGS_KEY, STREAM_KEY
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataResponse
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import PasswordCheck as PasswordCheckMessage
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Reach

_PREFIX = "bookgate."
_CHANGED_BY_CLIENTS = frozenset(("bookgate.writer", SETTINGS_KEY, CURSORS_KEY, CURSOR_KEY))
_CREATED_BY_CLIENTS = frozenset(
    (*_CHANGED_BY_CLIENTS, "bookgate.adopted", CODEC_KEY, GUARANTEED_KEY, STREAM_KEY, NAME_KEY)
)
_OF_SINKS = "bookgate.sink."
"""Keys that begin so are those of the Spark sink, which creates and changes them."""

_SALTS = secrets.token_bytes(32)
"""Secret of this process: it gives a ledger the same salt every time, so that its response is built once."""


def owner_of(metadata: LedgerMetadataFormat) -> str | None:
    """The principal that the metadata name as the ledger's owner."""
    for entry in metadata.customMetadata:
        if entry.key == OWNER_KEY:
            return owner_in(entry.value)
    return None


def owner_in(value: bytes | None) -> str | None:
    """The owner in the value of the owner key; None without a value, and for one that no gateway has written."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def owner_of_metadata(metadata: LedgerMetadata) -> str | None:
    return owner_in(metadata.custom_metadata.get(OWNER_KEY))


def owned_custom_metadata(metadata: LedgerMetadata, who: Caller) -> dict[str, bytes]:
    """The custom metadata of a ledger that the caller creates.

    Raises IncorrectParameterException for a key that is reserved for gateways.
    """
    mine = str(who.principal).encode()
    custom = dict(metadata.custom_metadata)
    if custom:
        # A caller that copies a ledger's metadata may leave itself in them as owner.
        named = custom.pop(OWNER_KEY, None)
        wrong = sorted(key for key in custom if _is_gateways(key, _CREATED_BY_CLIENTS))
        if wrong or named not in (None, mine):
            raise IncorrectParameterException(
                f"custom metadata {', '.join(wrong) or OWNER_KEY}: keys that begin with {_PREFIX} are the gateway's"
            )
    if who.principal.is_authenticated:
        custom[OWNER_KEY] = mine
    return custom


def _is_gateways(key: str, of_clients: frozenset[str]) -> bool:
    return key.startswith(_PREFIX) and key not in of_clients and not key.startswith(_OF_SINKS)


def to_be_written(metadata: LedgerMetadata, stored: LedgerMetadata) -> LedgerMetadata:
    """The metadata to store: with the stored password and the stored values of the gateway's keys.

    Raises IncorrectParameterException if the new metadata change these keys.
    """
    for key in sorted({*metadata.custom_metadata, *stored.custom_metadata}):
        if _is_gateways(key, _CHANGED_BY_CLIENTS) and metadata.custom_metadata.get(key) != stored.custom_metadata.get(
            key
        ):
            raise IncorrectParameterException(f"custom metadata {key} is the gateway's: it can't be changed")
    return with_stored_password(metadata, stored)


def with_stored_password(metadata: LedgerMetadata, stored: LedgerMetadata) -> LedgerMetadata:
    """The metadata with the stored password, which never changes and which the writer may not know."""
    return replace(metadata, password=stored.password, digest_type=stored.digest_type)


def action_of_write(metadata: LedgerMetadata, stored: LedgerMetadata) -> Action:
    """The action of a write: recovery if the ledger enters IN_RECOVERY, or is in it."""
    recovers = LedgerState.IN_RECOVERY in (metadata.state, stored.state)
    return Action.LEDGER_RECOVER if recovers else Action.LEDGER_WRITE


def withhold(response: LedgerMetadataResponse) -> LedgerMetadataResponse:
    """Replaces the password, if any, by a value to verify it; returns the same message."""
    metadata = response.metadata
    if metadata.HasField("password"):
        name = f"{response.ledger_scope_id}/{response.ledger_id}".encode()
        salt = hmac.digest(_SALTS, name, hashlib.sha256)[:SALT_BYTES]
        check = PasswordCheck.of(metadata.password, salt)
        response.password_check.CopyFrom(PasswordCheckMessage(salt=check.salt, digest=check.digest))
        metadata.password = b""
    return response


class ScopeView:
    """The ledgers of one scope that a caller may see, for checks of many ledgers."""

    __slots__ = ("_name", "_secrets", "whole")

    def __init__(self, who: Caller, scope_id: int, *actions: Action) -> None:
        """A ledger is visible with all of `actions`. Raises AccessDeniedException if the caller may see no ledger."""
        reaches = {who.require_some(action, scope_id) for action in actions}
        self.whole = reaches == {Reach.ALL}
        """Whether the caller may see every ledger."""
        self._secrets = who.reach(Action.LEDGER_SECRET, scope_id)
        self._name = str(who.principal)

    def is_same(self, other: ScopeView) -> bool:
        """Whether both show the same ledgers to the same caller."""
        return (self.whole, self._secrets) == (other.whole, other._secrets)

    def shows(self, owner: str | None) -> bool:
        """Whether the caller may see a ledger of this owner."""
        return self.whole or owner == self._name

    @property
    def shows_passwords(self) -> bool:
        """Whether the caller may read the passwords of all ledgers."""
        return self._secrets is Reach.ALL

    def shows_password(self, owner: str | None) -> bool:
        """Whether the caller may read the password of a ledger of this owner."""
        return self._secrets is Reach.ALL or (self._secrets is Reach.OWNED and owner == self._name)
