"""The policy of a simulated world, and who is who in it: each host has a token, which is its name.

A world under such a policy has the same doors as a real cluster: bookies and clients show their tokens, a ledger is
owned by who created it, and `strangers` are let in and may do nothing.
"""

from __future__ import annotations

import logging
import math

from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.audit_trail import AuditTrail
from bookgate.runtime.security.authenticators import Authenticators
from bookgate.runtime.security.policy import Policy, parse_policy
from bookgate.runtime.security.policy_file import PolicyFile
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.static_tokens import StaticTokens
from bookgate.runtime.security.watched_file import WatchedFile
from bookgate.thinclient.bookies.auth import TOKEN_PLUGIN
from tests.history.rules_access import ANONYMOUS, APPENDER, FORMER, STRANGER

_POLICY = f"""
[[bindings]]
principals = ["token:w*", "token:{STRANGER}"]
role = "writer"
owned = true
[[bindings]]
principals = ["token:r*", "token:healer"]
role = "writer"
[[bindings]]
principals = ["token:bookie-*"]
role = "bookie"
[roles.appender]
actions = ["entry.add"]
[[bindings]]
principals = ["token:{APPENDER}"]
role = "appender"
"""
"""Writers have their own ledgers, as the stranger would if there were any; others recover ledgers of all."""
_WHILE_TRUSTED = f'[[bindings]]\nprincipals = ["token:{FORMER}"]\nrole = "reader"\n'


class _Names(StaticTokens):
    """Each token is its principal's name."""

    def __init__(self) -> None:
        pass

    def principal(self, token: str) -> Principal:
        return Principal(Kind.TOKEN, token)


class _ChangingPolicy(PolicyFile):
    """One that no file has."""

    next_look = math.inf

    def __init__(self, policy: Policy) -> None:
        self.current = policy

    @property
    def value(self) -> Policy:
        return self.current


def access_control(policy: PolicyFile | Policy) -> AccessControl:
    """Of a process in which nobody reads the audit trail."""
    quiet = logging.getLogger("tests.simulation.audit")
    quiet.setLevel(logging.CRITICAL)
    return AccessControl(Authenticators(_Names()), policy, AuditTrail(logger=quiet))


class WorldAccess:
    """The policy that all bookies of a world have."""

    def __init__(self) -> None:
        self._policy = _ChangingPolicy(parse_policy(_POLICY + _WHILE_TRUSTED))

    def control(self) -> AccessControl:
        """For a process that starts."""
        return access_control(self._policy)

    def distrust(self) -> None:
        """Another policy, in which FORMER has nothing any more."""
        self._policy.current = parse_policy(_POLICY)
        WatchedFile.renewals += 1

    @staticmethod
    def client_settings(host: str) -> dict[str, object]:
        """Of a client on that host."""
        return {} if host == ANONYMOUS else {"auth_provider": TOKEN_PLUGIN, "auth_token": host}
