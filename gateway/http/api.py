"""HTTP admin as one table, from which come the routes, the validation of requests, and the OpenAPI document.

An operation declares its path, verb, query, body, response, and its required permission (`Need`). Invalid requests are
rejected before the handler runs: an unknown path with 404, a wrong verb with 405 and `Allow`, an undeclared or
malformed parameter or body with 400. Handlers raise HttpError for a status of their choice, and BKException for what
metadata and bookies reject (`status_of`). Every rejection is `{"error": "what, where, what to do"}`.

Paths and shapes of responses are BookKeeper's (docs/admin.md#paths); statuses are HTTP's where BookKeeper responds with
404 to a wrong verb or a missing parameter. Not its job: permissions (`access`), the contents of responses (the
neighbouring rooms).
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as StarletteRoute

from bookgate.gateway.http.access import Access, Asked, Need, path_of, peer_of
from bookgate.gateway.http.caller import ANYBODY, Caller
from bookgate.gateway.http.errors import HttpError, OverLimit
from bookgate.ledger import errors
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.actions import HTTP_ACTIONS, Action
from bookgate.runtime.wording import plain

_log = logging.getLogger(__name__)

_MAX_BODY = 64 * 1024
_ID_CHARACTERS = 40
_NAME_CHARACTERS = 255
"""Of what a request names, for the log and the audit trail."""
_INTEGER = re.compile(r"-?[0-9]{1,39}")
"""The longest are the 128 bits of a ledger id as one number."""
_BOOLEANS = {"true": True, "false": False}

MAX_INT64 = 2**63 - 1
MIN_INT64 = -(2**63)

JSON = "application/json"
TEXT = "text/plain"


def _integer(value: Any) -> Any:
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError("must be a whole number")
    return value


def _boolean(value: Any) -> Any:
    if isinstance(value, str) and value not in _BOOLEANS:
        raise ValueError("must be true or false")
    return _BOOLEANS.get(value, value) if isinstance(value, str) else value


WHOLE = BeforeValidator(_integer)
"""Stands behind the bounds of a number in a query, or the document would not tell them."""
Boolean = Annotated[bool, BeforeValidator(_boolean), WithJsonSchema({"type": "boolean"})]
LedgerHalf = Annotated[int, Field(ge=MIN_INT64, le=MAX_INT64), WHOLE]
"""Either half of a ledger id."""


class Query(BaseModel):
    """Parameters of a path, as given in its query. Unknown ones are refused: a misspelt one is not an absent one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Body(BaseModel):
    """A JSON object; truth values are JSON's own. Nothing else may stand in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NoQuery(Query):
    """No parameters."""


class AnyQuery(Query):
    """Whatever parameters come are not looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class NoBody(Body):
    """Whatever body comes is not looked at."""


QueryT = TypeVar("QueryT", bound=Query)
BodyT = TypeVar("BodyT", bound=Body)


@dataclass(frozen=True)
class Call(Generic[QueryT, BodyT]):
    """A request that was checked."""

    query: QueryT
    body: BodyT
    request: Request
    caller: Caller = ANYBODY


@dataclass(frozen=True)
class Operation(Generic[QueryT, BodyT]):
    """One path and verb. `answer` is the JSON schema of what is answered, None for text; `as_text` are media types of
    text that are answered instead where they are asked for; `failures` says what other statuses than those of bad
    requests mean here."""

    verb: str
    path: str
    summary: str
    handle: Callable[[Call[QueryT, BodyT]], Awaitable[Any]]
    query: type[QueryT]
    body: type[BodyT]
    need: Need = Need.NOTHING
    body_required: bool = True
    largest_body: int = _MAX_BODY
    answer: Mapping[str, Any] | None = field(default_factory=lambda: {"type": "object"})
    media_type: str = JSON
    as_text: tuple[str, ...] = ()
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def asked(self) -> Asked:
        """What it asks of the caller. A route that the table of actions lacks is the operator's."""
        other = Action.HTTP_READ if self.need is Need.NOTHING else Action.HTTP_CHANGE
        action = HTTP_ACTIONS.get((self.verb, self.path), other)
        scope = self.query.model_fields.get("ledger_scope_id")
        default = 0 if scope is None else scope.default
        return Asked(action, self.need, any_host=self.path in _ASKED_BY_MACHINES, scope_id=default)


Route = Operation[Any, Any]

_ASKED_BY_MACHINES = ("/heartbeat", "/ready", "/api/v1/bookie/is_ready", "/metrics")
"""By probes and Prometheus, at whatever name they found. They tell no more than that and how it works."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: it is what it says, for this server's own pages, and older by the next time."""


def get(path: str, summary: str, handle: Callable[[Call[Any, Any]], Awaitable[Any]], **more: Any) -> Route:
    """A row that reads."""
    return Operation("GET", path, summary, handle, **{"query": NoQuery, "body": NoBody, **more})


def change(
    verb: str, path: str, summary: str, handle: Callable[[Call[Any, Any]], Awaitable[Any]], **more: Any
) -> Route:
    """A row that changes something."""
    return Operation(verb, path, summary, handle, **{"query": NoQuery, "body": NoBody, "need": Need.WRITE, **more})


_STATUSES: tuple[tuple[tuple[type[errors.BKException], ...], int], ...] = (
    (
        (
            errors.NoSuchLedgerExistsOnMetadataServerException,
            errors.NoSuchLedgerExistsException,
            errors.NoSuchEntryException,
            errors.UnknownBookieException,
        ),
        404,
    ),
    ((errors.IncorrectParameterException,), 400),
    ((errors.MetadataVersionException, errors.LedgerExistException, errors.IllegalOpException), 409),
    (
        (
            errors.MetaStoreException,
            errors.BookieHandleNotAvailableException,
            errors.NotEnoughBookiesException,
            errors.ReadException,
            errors.WriteException,
            errors.TimeoutException,
            errors.LedgerRecoveryException,
        ),
        503,
    ),
    # Of this server, where it asks others: whoever asks here may do it.
    ((errors.UnauthorizedAccessException,), 403),
    ((errors.TooManyRequestsException,), 429),
)
_OF_THIS_SERVER = (403, 429)
_RETRY = {429: {"Retry-After": "1"}}


def status_of(error: errors.BKException) -> int:
    """The HTTP status of what metadata store and bookies refuse."""
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 500)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    # A name that was given may hold what no text can.
    message = message.encode("utf-8", "replace").decode()
    return JSONResponse({"error": message}, status_code=status, headers={**HEADERS, **(headers or {})})


def create_app(
    rows: Sequence[Route], access: Access, document: Mapping[str, Any], more_routes: Sequence[StarletteRoute] = ()
) -> Starlette:
    """The ASGI application. `document` is served at `/openapi.json`; `more_routes` are pages that are no API."""

    async def openapi(_request: Request) -> Response:
        return JSONResponse(document, headers=HEADERS)

    by_path: dict[str, dict[str, Route]] = {}
    for row in rows:
        by_path.setdefault(row.path, {})[row.verb] = row
    routes = [
        StarletteRoute(path, partial(_dispatch, verbs, access), methods=list(verbs), include_in_schema=False)
        for path, verbs in by_path.items()
    ]
    handlers: Any = {HTTPException: _http_refused, Exception: _unexpected}
    return Starlette(
        routes=[*routes, StarletteRoute("/openapi.json", openapi), *more_routes], exception_handlers=handlers
    )


async def _dispatch(verbs: Mapping[str, Route], access: Access, request: Request) -> Response:
    row = verbs["GET" if request.method == "HEAD" else request.method]
    caller, began = ANYBODY, time.perf_counter()
    try:
        caller = access.caller(row.asked, request)
        response = await _answered(row, request, caller)
    except HttpError as error:
        response = error_response(error.status, str(error), error.headers)
        if isinstance(error, OverLimit) or error.status in (401, 403):
            # Written down where it was decided.
            return response
    except Exception:
        # `_unexpected` answers it; what was changed before it failed was changed.
        _write_down(row, request, caller, 500, time.perf_counter() - began)
        raise
    _write_down(row, request, caller, response.status_code, time.perf_counter() - began)
    return response


def _write_down(row: Route, request: Request, caller: Caller, status: int, seconds: float) -> None:
    """What was let through, and how it ended: in the audit trail with a policy, else of changes in the log."""
    action = row.asked.action
    if action is None:
        return
    caller.changed(action, _named(request), status, seconds)
    if caller.control is None and row.verb != "GET" and not action.is_reading:
        peer = peer_of(request)
        log_event(_log, "http_change", verb=row.verb, path=_named(request), peer=peer, status=status)


def _named(request: Request) -> str:
    """What was asked for, for the log and the audit trail."""
    path, query = path_of(request), request.query_params
    if (ledger := query.get("ledger_id")) is not None:
        return f"{path} ledger:{ledger[:_ID_CHARACTERS]}"
    names = [(kind, query.get(parameter)) for kind, parameter in (("stream", "name"), ("cursor", "cursor"))]
    return " ".join([path, *(f"{kind}:{name[:_NAME_CHARACTERS]}" for kind, name in names if name is not None)])


async def _answered(row: Route, request: Request, caller: Caller) -> Response:
    """Raises HttpError for what is wrong with the request, and for what the handler refuses."""
    try:
        call: Call[Any, Any] = Call(_query(row.query, request), await _body(row, request), request, caller)
        return _response(row, await row.handle(call))
    except errors.BKException as error:
        status = status_of(error)
        if status >= 500 or status in _OF_THIS_SERVER:
            log_event(_log, "http_request_failed", logging.WARNING, verb=row.verb, path=row.path, error=error)
        return error_response(status, str(error), _RETRY.get(status))


def _response(row: Route, answer: Any) -> Response:
    if isinstance(answer, Response):
        answer.headers.update(HEADERS)
        return answer
    if row.answer is None:
        return Response(answer, media_type=row.media_type, headers=HEADERS)
    return JSONResponse(answer, headers=HEADERS)


def _query(model: type[Query], request: Request) -> Query:
    given = request.query_params
    for name, times in Counter(name for name, _ in given.multi_items()).items():
        if times > 1:
            raise HttpError(400, f"parameter {name} is given {times} times; give it once")
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        known = ", ".join(model.model_fields) or "none"
        raise HttpError(400, f"{_problems(error, 'parameter ')}; parameters of this path: {known}") from None


async def _body(row: Route, request: Request) -> Body:
    if row.body is NoBody:
        return NoBody()
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > row.largest_body:
            raise HttpError(413, f"the body is larger than {row.largest_body} bytes; nothing this path takes is")
    if not content.strip() and not row.body_required:
        content = b"{}"
    keys = ", ".join(known.alias or name for name, known in row.body.model_fields.items())
    try:
        checked: Body = row.body.model_validate(_json(content))
        return checked
    except ValidationError as error:
        raise HttpError(400, f"{_problems(error, 'body: ')}; the body is a JSON object with {keys}") from None
    except ValueError as error:
        raise HttpError(400, f"the body must be a JSON object with {keys}: {error}") from None


def _json(content: bytes) -> Any:
    try:
        told = json.loads(content)
        # Half a character can be neither stored nor sent.
        json.dumps(told, ensure_ascii=False).encode()
        return told
    except UnicodeEncodeError:
        raise ValueError("a text in it has half a character") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _problems(error: ValidationError, kind: str) -> str:
    def text(detail: Any) -> str:
        name = ".".join(map(str, detail["loc"]))
        if detail["type"] == "extra_forbidden":
            return f"{kind}{name} is not known"
        if detail["type"] == "missing":
            return f"{kind}{name} is missing"
        return f"{kind}{name + ': ' if name else ''}{plain(str(detail['msg']))}"

    return "; ".join(text(detail) for detail in error.errors(include_url=False, include_input=False)[:5])


async def _http_refused(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return error_response(
            405, f"{path_of(request)} does not take {request.method}; it takes {allowed}", error.headers
        )
    if error.status_code == 404:
        return error_response(404, f"there is nothing at {path_of(request)}; /openapi.json lists what there is")
    return error_response(error.status_code, error.detail, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    return error_response(500, f"{request.method} {path_of(request)} failed: {type(error).__name__}; the log says more")
