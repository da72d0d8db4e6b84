"""The answer that carries nothing but a failure, for each operation of the entry protocol (`requests`)."""

from __future__ import annotations

from ledger import requests
from ledger.requests import Operation, Request, Response, Status


def refusal(request: Request, status: Status) -> Response:
    """In the form that belongs to the request's operation."""
    txn_id = request.txn_id
    match request:
        case requests.AddRequest():
            return requests.AddResponse(txn_id, status, request.ledger_id, request.entry_id)
        case requests.ReadRequest():
            return requests.ReadResponse(txn_id, status, request.ledger_id, request.entry_id)
        case requests.BatchReadRequest():
            return requests.BatchReadResponse(txn_id, status, request.ledger_id, request.entry_id)
        case requests.ReadLacRequest():
            return requests.ReadLacResponse(txn_id, status, request.ledger_id)
        case requests.WriteLacRequest():
            return requests.WriteLacResponse(txn_id, status, request.ledger_id)
        case requests.ForceLedgerRequest():
            return requests.ForceLedgerResponse(txn_id, status, request.ledger_id)
        case requests.GetBookieInfoRequest():
            return requests.GetBookieInfoResponse(txn_id, status)
        case requests.ListEntriesRequest():
            return requests.ListEntriesResponse(txn_id, status, request.ledger_id)
        case requests.InvalidRequest(operation=Operation.ADD_ENTRY):
            return requests.AddResponse(txn_id, status, request.ledger_id, request.entry_id)
        case requests.InvalidRequest(operation=Operation.READ_ENTRY):
            return requests.ReadResponse(txn_id, status, request.ledger_id, request.entry_id)
        case requests.InvalidRequest():
            return requests.StatusResponse(txn_id, request.operation, status, request.priority)
        case requests.AuthRequest():
            return requests.AuthResponse(txn_id, status, priority=request.priority)
        case requests.StartTlsRequest():
            return requests.StartTlsResponse(txn_id, status)
