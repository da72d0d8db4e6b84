"""The audit trail of ledgers: one line for each change, whatever its outcome.

    with LedgerChange(Action.LEDGER_DELETE, request):
        ...                                  # the line has the outcome of an exception raised here

The line is written where the change is made, not where its caller waits for it: so there is a line even if the caller
has gone, and none for a repeated request. Without security there is no caller, and no line.
"""

from __future__ import annotations

import time
from types import TracebackType

from bookgate.gateway.services.caller import caller, ledger_resource
from bookgate.gateway.services.messages import ledger_id_of
from bookgate.gateway.services.status import SUCCESS, outcome_of
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerMetadataRequest
from bookgate.runtime.security.actions import Action


class LedgerChange:
    """One change in progress; see the module."""

    __slots__ = ("_began", "_request", "_who", "action", "ledger_id")

    def __init__(self, action: Action, request: LedgerMetadataRequest) -> None:
        self.action = action
        self.ledger_id: LedgerId | None = None
        """The id of a ledger created with a generated id, which the request lacks."""
        self._request = request
        self._who = caller()
        self._began = time.perf_counter()

    def __enter__(self) -> LedgerChange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(error)

    def ended(self, error: BaseException | None = None) -> None:
        """Writes the line."""
        if self._who is None or not self._who.is_written_down(self.action):
            return
        request = self._request
        resource = ledger_resource(self.ledger_id or _named(request), None, request.ledger_scope_id)
        outcome = SUCCESS if error is None else outcome_of(error)
        self._who.done(self.action, resource, outcome, time.perf_counter() - self._began, request.request_token)


def _named(request: LedgerMetadataRequest) -> LedgerId | None:
    try:
        return ledger_id_of(request)
    except IncorrectParameterException:
        return None
