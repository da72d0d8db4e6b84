"""Error responses of the entry protocol: for each operation, the response that carries only a status."""

from __future__ import annotations

from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import Operation, Request, Response, Status


def error_response(request: Request, status: Status) -> Response:
    """The error response in the form of the request's operation."""
    txn_id = request.txn_id
    match request:
        case messages.AddRequest():
            return messages.AddResponse(txn_id, status, request.ledger_id, request.entry_id, request.term)
        case messages.ReadRequest():
            return messages.ReadResponse(txn_id, status, request.ledger_id, request.entry_id, term=request.term)
        case messages.BatchReadRequest():
            return messages.BatchReadResponse(txn_id, status, request.ledger_id, request.entry_id)
        case messages.ReadLacRequest():
            return messages.ReadLacResponse(txn_id, status, request.ledger_id)
        case messages.WriteLacRequest():
            return messages.WriteLacResponse(txn_id, status, request.ledger_id)
        case messages.ForceLedgerRequest():
            return messages.ForceLedgerResponse(txn_id, status, request.ledger_id)
        case messages.GetBookieInfoRequest():
            return messages.GetBookieInfoResponse(txn_id, status)
        case messages.ListEntriesRequest():
            return messages.ListEntriesResponse(txn_id, status, request.ledger_id)
        case messages.InvalidRequest(operation=Operation.ADD_ENTRY):
            return messages.AddResponse(txn_id, status, request.ledger_id, request.entry_id)
        case messages.InvalidRequest(operation=Operation.READ_ENTRY):
            return messages.ReadResponse(txn_id, status, request.ledger_id, request.entry_id)
        case messages.InvalidRequest():
            return messages.StatusResponse(txn_id, request.operation, status, request.priority)
        case messages.AuthRequest():
            return messages.AuthResponse(txn_id, status, priority=request.priority)
        case messages.StartTlsRequest():
            return messages.StartTlsResponse(txn_id, status)
