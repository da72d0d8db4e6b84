"""What a connection may do before it is let in: the state table of authentication, and of TLS where it is demanded.

States: shut (not yet secured where TLS is demanded, or not yet authenticated) → open, for good. While shut only the
requests that lead on are served: START_TLS, and AUTH once TLS has no say any more, so that no secret is asked for in
clear. Everything else is told that it is not authorised, in the words its protocol has; where the binary protocol has
none, the connection ends. A connection without either demand has no gate at all.

Source: docs/protocol/wire.md#authentication. Not here: what a plugin takes for proof (`authentication`), the TLS
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from bookgate.ledger.wire import messages
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.messages import (
    AuthRequest,
    AuthResponse,
    Operation,
    Request,
    Response,
    Status,
    StatusResponse,
)

_OPERATIONS: dict[type, Operation] = {
    messages.AddRequest: Operation.ADD_ENTRY,
    messages.ReadRequest: Operation.READ_ENTRY,
    messages.ReadLacRequest: Operation.READ_LAC,
    messages.WriteLacRequest: Operation.WRITE_LAC,
    messages.ForceLedgerRequest: Operation.FORCE_LEDGER,
    messages.GetBookieInfoRequest: Operation.GET_BOOKIE_INFO,
    messages.ListEntriesRequest: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    messages.AuthRequest: Operation.AUTH,
    messages.StartTlsRequest: Operation.START_TLS,
}


class AuthenticationException(Exception):
    """A plugin does not take what it was shown; the message is for the bookie's log only."""


class AuthSession(Protocol):
    """A plugin's view of one connection."""

    @property
    def authenticated(self) -> bool: ...

    def process(self, payload: bytes) -> bytes:
        """Takes the client's payload and returns the reply. Raises AuthenticationException."""

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        """The connection went over to TLS; the client's certificate as `ssl.getpeercert` tells it, None without one.

        Raises AuthenticationException.
        """


class Verdict(NamedTuple):
    """What becomes of a request: it passes, or is answered and, with `ends`, the connection closed for that reason."""

    passes: bool = False
    answer: Response | None = None
    ends: str | None = None


class Gate:
    """One connection's. `session` None: nothing to authenticate; `plugin` is the name of the bookie's plugin."""

    def __init__(self, session: AuthSession | None, plugin: str | None, *, tls_required: bool) -> None:
        self._session = session
        self._plugin = plugin
        self._waits_for_tls = tls_required

    @property
    def is_open(self) -> bool:
        return not self._waits_for_tls and (self._session is None or self._session.authenticated)

    def secured(self, certificate: Mapping[str, Any] | None) -> None:
        """TLS stands. Raises AuthenticationException when the plugin doesn't like the certificate."""
        self._waits_for_tls = False
        if self._session is not None:
            self._session.secured(certificate)

    def check(self, request: Request, *, binary: bool) -> Verdict:
        """Judges a request that came while the gate was shut."""
        if self.is_open or (isinstance(request, messages.StartTlsRequest) and request.complete):
            return Verdict(passes=True)
        if isinstance(request, AuthRequest):
            return self._authenticate(request, binary)
        if not binary:
            return Verdict(answer=_unauthorised(request))
        if isinstance(request, messages.AddRequest | messages.ReadRequest):
            return Verdict(answer=error_response(request, Status.EUA))
        return Verdict(ends=f"{type(request).__name__} before authentication")

    def _authenticate(self, request: AuthRequest, binary: bool) -> Verdict:
        refused = None if binary else _unauthorised(request)
        if self._session is None or self._waits_for_tls or request.plugin_name != self._plugin:
            ends = f"authentication by {request.plugin_name!r} is not possible here" if binary else None
            return Verdict(answer=refused, ends=ends)
        try:
            reply = self._session.process(request.payload)
        except AuthenticationException as error:
            return Verdict(answer=refused, ends=f"authentication failed: {error}")
        return Verdict(answer=AuthResponse(request.txn_id, Status.EOK, request.plugin_name, reply, request.priority))


def _unauthorised(request: Request) -> Response:
    """The request's own header with a status and nothing else."""
    operation = request.operation if isinstance(request, messages.InvalidRequest) else _OPERATIONS[type(request)]
    return StatusResponse(request.txn_id, operation, Status.EUA, getattr(request, "priority", 0))
