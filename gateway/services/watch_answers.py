"""The responses of Watch streams: a ledger's state as far as the caller may see it, rejections, removals.

A caller that may watch and read a ledger sees it. This is checked again for each response, since the policy may change;
a denied subscription ends.

Not its job: subscriptions and streams (`watch`, `watch_hub`).
"""

from __future__ import annotations

from dataclasses import dataclass

from bookgate.gateway.services.caller import AccessDeniedException, Caller
from bookgate.gateway.services.encoded_responses import EncodedLedger
from bookgate.gateway.services.ledger_access import ScopeView
from bookgate.gateway.services.messages import failure, ledger_id_of
from bookgate.gateway.services.watch_hub import DAMAGED, Answer, WatchedRecord
from bookgate.ledger.errors import (
    BKException,
    MetadataFormatException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import LedgerId
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import (
    LedgerMetadataRequest,
    LedgerMetadataResponse,
    WatchEvent,
)
from bookgate.runtime.security.actions import Action

WatchResponse = LedgerMetadataResponse | bytes
"""A message, or one already encoded."""

_NEEDED = (Action.LEDGER_WATCH, Action.LEDGER_READ)


@dataclass(frozen=True, slots=True)
class DamagedLedger:
    """A ledger whose metadata can't be parsed."""

    ledger_id: LedgerId
    error: MetadataFormatException
    version: int = DAMAGED
    incarnation: int | None = None
    owner: str | None = None


def view_of_scope(who: Caller, ledger_id: LedgerId) -> ScopeView:
    """What the caller may watch. Raises AccessDeniedException if it may watch nothing in the ledger's scope."""
    return ScopeView(who, ledger_id.scope_id, *_NEEDED)


def may_watch(who: Caller, record: WatchedRecord) -> bool:
    """Whether the caller may see a ledger in this state. Writes no audit line."""
    assert isinstance(record, (EncodedLedger, DamagedLedger))
    return all(who.may(action, record.ledger_id.scope_id, record.owner) for action in _NEEDED)


def require_watch(who: Caller, record: WatchedRecord) -> ScopeView:
    """What the caller may see of a ledger in this state. Raises AccessDeniedException if it may see nothing."""
    assert isinstance(record, (EncodedLedger, DamagedLedger))
    view = view_of_scope(who, record.ledger_id)
    if not view.shows(record.owner):
        for action in _NEEDED:
            who.require_ledger(action, record.ledger_id, record.owner)
    return view


def answer_message(
    answer: Answer, revision: int, requests_handled: int, who: Caller | None
) -> tuple[WatchResponse, bool]:
    """The response, and whether the caller may see this ledger; if not, the subscription ends."""
    record = answer.record
    if record is None:
        missing = NoSuchLedgerExistsOnMetadataServerException(f"there is no ledger {answer.ledger_id}")
        response = failure(missing, answer.ledger_id, revision)
        response.event = WatchEvent.REMOVED
        response.requests_handled = requests_handled
        return response, True
    assert isinstance(record, (EncodedLedger, DamagedLedger))
    view = None
    if who is not None:
        try:
            view = require_watch(who, record)
        except AccessDeniedException as error:
            return failure(error, answer.ledger_id, revision), False
    if isinstance(record, DamagedLedger):
        return failure(record.error, answer.ledger_id, revision), True
    if view is not None and not view.shows_password(record.owner):
        record = record.without_password()
    return record.watch_answer(revision, requests_handled), True


def refusal(request: LedgerMetadataRequest, message: str) -> LedgerMetadataResponse:
    """The response to a subscription beyond the stream's limit."""
    return LedgerMetadataResponse(
        code=StatusCode.UNEXPECTED,
        ledger_id=request.ledger_id,
        ledger_scope_id=request.ledger_scope_id,
        message=f"RESOURCE_EXHAUSTED: {message}",
    )


def named(request: LedgerMetadataRequest) -> LedgerId | None:
    """The ledger of a request, if it names one."""
    try:
        return ledger_id_of(request)
    except BKException:
        return None
