"""Which requests a connection may send before it is authorised.

States: `GateState`, with the table `GATE`. Until the connection is authorised, only START_TLS is accepted and, once TLS
(if required) is established, AUTH; credentials therefore never travel in clear text. Every other request is answered
with "not authorised" in the form of its protocol; v2 can express this for adds and reads only, and closes the
connection for other requests. A connection for which neither TLS nor authentication is required is open from the start.

Source: docs/protocol/wire.md#authentication. Not its job: what a provider accepts as proof (`authentication`), TLS
itself.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from bookgate.ledger.transitions import Transitions
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.messages import (
    OPERATIONS,
    AuthRequest,
    AuthResponse,
    Request,
    Response,
    Status,
    StatusResponse,
)
from bookgate.runtime.security.principal import ANONYMOUS, Principal


class GateState(enum.Enum):
    """The states of a connection's authorisation."""

    AWAITING_TLS = "TLS is required and not established: only START_TLS is served"
    AWAITING_AUTH = "the client has not proved who it is: only AUTH is served, and START_TLS"
    OPEN = "every request is served"


class GateEvent(enum.Enum):
    """The events that change the state."""

    SECURED = "TLS is established"
    PROVED = "the provider has accepted the client, by its certificate or by an AUTH request"


GATE = Transitions(
    GateState.AWAITING_TLS,
    {
        GateState.AWAITING_TLS: {GateEvent.SECURED: GateState.AWAITING_AUTH},
        GateState.AWAITING_AUTH: {
            GateEvent.SECURED: GateState.AWAITING_AUTH,
            GateEvent.PROVED: GateState.OPEN,
        },
        GateState.OPEN: {GateEvent.SECURED: GateState.OPEN, GateEvent.PROVED: GateState.OPEN},
    },
)


class AuthenticationException(Exception):
    """The provider rejects the client's credentials; the message is for the bookie's log only."""


class AuthSession(Protocol):
    """One connection's authentication, created by a provider."""

    @property
    def authenticated(self) -> bool:
        """Whether the client is authenticated; once true, it stays true."""

    def process(self, payload: bytes) -> bytes:
        """Takes the client's payload and returns the reply. Raises AuthenticationException."""

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        """TLS is established. `certificate` is the client's, as `ssl.getpeercert` returns it; None without one.

        Raises AuthenticationException.
        """


class GateVerdict(NamedTuple):
    """The decision on a request: it passes, or `answer` is sent; `ends` is the reason to close the connection."""

    passes: bool = False
    answer: Response | None = None
    ends: str | None = None


class Gate:
    """The gate of one connection. `session` is None without authentication; `plugin` names the bookie's provider."""

    def __init__(self, session: AuthSession | None, plugin: str | None, *, tls_required: bool) -> None:
        self._session = session
        self._plugin = plugin
        self.state = GATE.initial
        if not tls_required:
            self._secured()

    @property
    def is_open(self) -> bool:
        return self.state is GateState.OPEN

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        """TLS is established. Raises AuthenticationException if the provider rejects the certificate."""
        if self._session is not None:
            self._session.secured(certificate)
        self._secured()

    def _secured(self) -> None:
        self.state = GATE.after(self.state, GateEvent.SECURED)
        if self._session is None or self._session.authenticated:
            self._proved()

    def _proved(self) -> None:
        self.state = GATE.after(self.state, GateEvent.PROVED)

    def check(self, request: Request, *, binary: bool) -> GateVerdict:
        """Decides on a request before the gate is open, and on AUTH afterwards. `binary`: the request came in v2."""
        if self.is_open and not self._may_be_somebody_else(request):
            return GateVerdict(passes=True)
        if isinstance(request, messages.StartTlsRequest) and request.complete:
            return GateVerdict(passes=True)
        if isinstance(request, AuthRequest):
            return self._authenticate(request, binary)
        if not binary:
            return GateVerdict(answer=unauthorised(request))
        if isinstance(request, messages.AddRequest | messages.ReadRequest):
            return GateVerdict(answer=error_response(request, Status.EUA))
        return GateVerdict(ends=f"{type(request).__name__} before authentication")

    @property
    def principal(self) -> Principal:
        """The authorised principal; `anonymous` if the provider names none."""
        principal = getattr(self._session, "principal", ANONYMOUS)
        return principal if isinstance(principal, Principal) else ANONYMOUS

    def _may_be_somebody_else(self, request: Request) -> bool:
        """Whether an authorised connection (by its certificate, for instance) now sends a token that the provider
        uses.
        """
        names = isinstance(getattr(self._session, "principal", None), Principal)
        return isinstance(request, AuthRequest) and names and request.plugin_name == self._plugin

    def _authenticate(self, request: AuthRequest, binary: bool) -> GateVerdict:
        refused = None if binary else unauthorised(request)
        if self._session is None or self.state is GateState.AWAITING_TLS or request.plugin_name != self._plugin:
            ends = f"authentication by {request.plugin_name!r} is not possible here" if binary else None
            return GateVerdict(answer=refused, ends=ends)
        try:
            reply = self._session.process(request.payload)
        except AuthenticationException as error:
            return GateVerdict(answer=refused, ends=f"authentication failed: {error}")
        if self._session.authenticated:
            self._proved()
        return GateVerdict(
            answer=AuthResponse(request.txn_id, Status.EOK, request.plugin_name, reply, request.priority)
        )


def unauthorised(request: Request) -> Response:
    """A response with the request's header and a status only."""
    operation = request.operation if isinstance(request, messages.InvalidRequest) else OPERATIONS[type(request)]
    return StatusResponse(request.txn_id, operation, Status.EUA, getattr(request, "priority", 0))
