"""What each door asks: who is this, and may they do that. One a process; None where security has no settings.

    access = AccessControl.from_settings(settings)       # None: everything is as without security
    principal = access.authenticate(bearer=token)        # raises NotAuthenticatedException
    decision = access.decide(principal, Action.ENTRY_ADD, Resource(scope_id, owner))

With authentication and no policy whoever is authenticated may do everything, and nobody else anything. With a policy
what it does not allow is denied. A door tells `denied` what it refused, so that the audit trail and the metrics have
it, and `done` what it changed. What a principal has used of its rates counts for all doors together (`take`).

Not its job: how a refusal is told to the caller.
"""

from __future__ import annotations

import time
from collections import Counter

from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.audit_trail import AuditTrail
from bookgate.runtime.security.authenticators import Authenticators, NotAuthenticatedException
from bookgate.runtime.security.decision import CLUSTER, Decision, Reach, Resource, Rights, rights_of
from bookgate.runtime.security.policy import Policy
from bookgate.runtime.security.policy_file import PolicyFile
from bookgate.runtime.security.principal import ANONYMOUS, CertificateNames, Principal
from bookgate.runtime.security.rate_limits import PrincipalLimits
from bookgate.runtime.security.refused_files import FileKind, RefusedFiles
from bookgate.runtime.security.settings import SecuritySettings
from bookgate.runtime.security.watched_file import WatchedFile

_EMPTY = Policy()


class AccessControl:
    """See the module."""

    def __init__(
        self,
        authenticators: Authenticators,
        policy: PolicyFile | Policy | None = None,
        audit: AuditTrail | None = None,
        rates: PrincipalLimits | None = None,
    ) -> None:
        self._authenticators = authenticators
        self._policy = policy
        self.files = (*authenticators.files, *([policy] if isinstance(policy, PolicyFile) else []))
        """Static tokens and the policy, which are looked at once a second at most; `refresh` looks at one now."""
        self._next_look = 0.0
        self.audit = audit or AuditTrail()
        self.rates = rates or PrincipalLimits()
        """What principals have used of their limits; of a bookie and the gateway in its process it is one."""
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By door, kind of principal and outcome: `allowed`, `denied`, `unauthenticated`, `limited`, `quota`."""

    @classmethod
    def from_settings(
        cls, settings: SecuritySettings, *, certificates: bool = False, rates: PrincipalLimits | None = None
    ) -> AccessControl | None:
        """None without any setting of security. Raises IncorrectParameterException for files that can't be used.

        `certificates`: client certificates are demanded, and so authenticate. `rates`: those that somebody else in this
        process counts already.
        """
        if not settings.has_security:
            return None
        policy = PolicyFile(settings.security_policy) if settings.security_policy else None
        authenticators = Authenticators.from_settings(settings, certificates=certificates)
        return cls(authenticators, policy, AuditTrail.from_settings(settings), rates)

    @property
    def policy(self) -> Policy:
        """As it stands now; an empty one where there is none, which limits nobody."""
        policy = self._policy
        if policy is None:
            return _EMPTY
        return policy if isinstance(policy, Policy) else policy.value

    @property
    def has_policy(self) -> bool:
        return self._policy is not None

    @property
    def refused_files(self) -> RefusedFiles:
        """Of policy, tokens and keys what can't be used as it is now: what was read before is in force."""
        refused = dict(self._authenticators.refused_files)
        if isinstance(self._policy, PolicyFile) and (problem := self._policy.problem) is not None:
            refused[FileKind.POLICY] = problem
        return refused

    def authenticate(
        self,
        *,
        door: str,
        peer: str,
        bearer: str | None = None,
        certificate: CertificateNames | None = None,
        loopback: bool = False,
    ) -> Principal:
        """Who calls. Raises NotAuthenticatedException, which is in the audit trail then."""
        try:
            return self._authenticators.authenticate(bearer=bearer, certificate=certificate, loopback=loopback)
        except NotAuthenticatedException as error:
            self.counts[door, ANONYMOUS.kind, "unauthenticated"] += 1
            self.audit.record(
                principal=ANONYMOUS,
                peer=peer,
                door=door,
                action="authenticate",
                resource="-",
                outcome="unauthenticated",
                rule=str(error),
            )
            raise

    def generation(self) -> int:
        """Another number when static tokens or the policy have changed since, which is looked for as often as ever."""
        if self.files and time.monotonic() >= self._next_look:
            for file in self.files:
                # Looks, where it is time.
                _ = file.value
            self._next_look = min(file.next_look for file in self.files)
        return WatchedFile.renewals

    def rights(self, principal: Principal) -> Rights:
        """What the principal may do, as the policy stands now."""
        return rights_of(None if self._policy is None else self.policy, principal)

    def decide(self, principal: Principal, action: Action, resource: Resource = CLUSTER) -> Decision:
        """Whether the principal may do it. Tells nobody."""
        return self.rights(principal).decide(action, resource)

    def may_somewhere(self, principal: Principal, action: Action) -> bool:
        """Whether there is anything to which the principal may do it."""
        return self.rights(principal).may_somewhere(action)

    def reach(self, principal: Principal, action: Action, scope_id: int) -> Reach:
        """For which ledgers of a scope the principal may do it."""
        return self.rights(principal).reach(action, scope_id)

    def denied(
        self,
        principal: Principal,
        action: Action | str,
        resource: Resource,
        decision: Decision,
        *,
        door: str,
        peer: str,
        request_token: bytes = b"",
    ) -> None:
        """Records a denial. `action`: a word for what is none, and so allowed to nobody."""
        self.counts[door, principal.kind, "denied"] += 1
        self.audit.record(
            principal=principal,
            peer=peer,
            door=door,
            action=action,
            resource=str(resource),
            outcome="denied",
            rule=decision.rule,
            request_token=request_token,
        )

    def refused(self, principal: Principal, action: str, resource: str, rule: str, *, door: str, peer: str) -> None:
        """Records what the door itself refused, whatever the policy says; of the same ones a line a minute."""
        self.counts[door, principal.kind, "denied"] += 1
        self.audit.record_some(
            principal=principal, peer=peer, door=door, action=action, resource=resource, outcome="denied", rule=rule
        )

    def limited(self, principal: Principal, action: str, rule: str, *, door: str, peer: str) -> None:
        """Records what was refused since there was too much of it; of the same ones a line a minute."""
        self.counts[door, principal.kind, "limited"] += 1
        self.audit.record_some(
            principal=principal, peer=peer, door=door, action=action, resource="-", outcome="limited", rule=rule
        )

    def take(self, principal: Principal, rate: str, now: float, amount: float = 1.0, *, door: str, peer: str) -> float:
        """Takes from a principal's rate, a name of `Limits`; seconds to wait, which are recorded; 0: it was taken."""
        wait = self.rates.take(self.policy, principal, rate, now, amount)
        if wait > 0:
            self.limited(principal, "call", f"over {rate}", door=door, peer=peer)
        return wait

    def charge(self, principal: Principal, rate: str, now: float, amount: float, *, door: str) -> float:
        """Takes what was served already; seconds until it is paid, for which the door serves the principal no more."""
        wait = self.rates.charge(self.policy, principal, rate, now, amount)
        if wait > 0:
            self.counts[door, principal.kind, "limited"] += 1
        return wait

    def owe(self, principal: Principal, rate: str, now: float, amount: float) -> None:
        """Takes what a call was answered with: the next `take` waits for it."""
        self.rates.charge(self.policy, principal, rate, now, amount)

    def quota_reached(self, principal: Principal, resource: Resource, rule: str, *, door: str, peer: str) -> None:
        """Records a ledger that was not created, since there are as many as the policy allows."""
        self.counts[door, principal.kind, "quota"] += 1
        self.audit.record(
            principal=principal,
            peer=peer,
            door=door,
            action=Action.LEDGER_CREATE,
            resource=str(resource),
            outcome="quota",
            rule=rule,
        )

    def done(
        self,
        principal: Principal,
        action: Action,
        resource: Resource | str,
        outcome: str,
        *,
        door: str,
        peer: str,
        request_token: bytes = b"",
        seconds: float | None = None,
        counted: bool = True,
    ) -> None:
        """Records what was allowed and how it ended, `outcome` being the call's code.

        `counted`: False where the door counts its calls itself.
        """
        if counted:
            self.counts[door, principal.kind, "allowed"] += 1
        if self.audit.wants(action, allowed=True):
            self.audit.record(
                principal=principal,
                peer=peer,
                door=door,
                action=action,
                resource=str(resource),
                outcome=outcome,
                request_token=request_token,
                seconds=seconds,
            )

    def close(self) -> None:
        self.audit.close()
