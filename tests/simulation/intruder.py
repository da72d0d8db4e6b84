"""A client whose changes the policy denies, and the gateways' policy that does (A1)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from bookgate.ledger.errors import UnauthorizedAccessException
from bookgate.ledger.ledger_manager import LedgerRecord
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.audit_trail import AuditTrail
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.static_tokens import StaticTokens
from tests.history.check_metadata import INTRUDER
from tests.simulation.metadata_actors import MetadataClient

__all__ = ["INTRUDER", "Intruder", "guarded"]

_POLICY = f"""
[roles.looker]
actions = ["ledger.read", "ledger.list", "ledger.watch", "discovery.read"]
[[bindings]]
principals = ["token:client-*"]
role = "writer"
[[bindings]]
principals = ["token:{INTRUDER}"]
role = "looker"
[[bindings]]
principals = ["token:{INTRUDER}"]
role = "writer"
owned = true
scopes = ["77"]
"""


class _Names(StaticTokens):
    """Each token is its principal's name."""

    def __init__(self) -> None:
        pass

    def principal(self, token: str) -> Principal:
        return Principal(Kind.TOKEN, token)


def guarded() -> AccessControl:
    quiet = logging.getLogger("tests.simulation.audit")
    quiet.setLevel(logging.CRITICAL)
    return AccessControl(Authenticators(_Names()), parse_policy(_POLICY), AuditTrail(logger=quiet))


class Intruder(MetadataClient):
    """Tries what all do; that its changes are refused is what it expects."""

    async def _change(
        self, mark: str, kind: str, ledger: int | None, call: Awaitable[LedgerRecord | None]
    ) -> LedgerRecord | None:
        try:
            return await super()._change(mark, kind, ledger, call)
        except UnauthorizedAccessException:
            return None
