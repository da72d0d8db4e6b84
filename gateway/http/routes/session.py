"""The console's session: login with a token, the current user, logout (`bookgate.gateway.http.sessions`)."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

from bookgate.gateway.http.access import Access, drop_cookie, set_cookie
from bookgate.gateway.http.api import Body, Call, NoBody, NoQuery, Operation, Route, get
from bookgate.gateway.http.sessions import Session

SESSION = "/api/v1/console/session"

_ANSWER = {
    "type": "object",
    "required": ["principal", "csrf"],
    "properties": {"principal": {"type": ["string", "null"]}, "csrf": {"type": ["string", "null"]}},
}
_ELSEWHERE = {403: "for a page of another origin, or under another name"}


class LoginBody(Body):
    token: str = Field(min_length=1, max_length=16384, repr=False, description="the token")


def session_routes(access: Access) -> list[Route]:
    async def log_in(call: Call[NoQuery, LoginBody]) -> Response:
        principal, cookie, session = access.log_in(call.request, call.body.token.strip())
        response = _shown(principal, session)
        set_cookie(response, call.request, cookie)
        return response

    async def who(call: Call[NoQuery, NoBody]) -> Response:
        found = access.logged_in(call.request)
        return _shown(None, None) if found is None else _shown(*found)

    async def log_out(call: Call[NoQuery, NoBody]) -> Response:
        access.log_out(call.request)
        response = _shown(None, None)
        drop_cookie(response, call.request)
        return response

    refused = {
        401: "the token is not known here",
        429: "too many wrong tokens from this address, or logins of this principal; Retry-After says when",
        **_ELSEWHERE,
    }
    return [
        Operation(
            "POST",
            SESSION,
            "Log in: a cookie holds the session",
            log_in,
            NoQuery,
            LoginBody,
            answer=_ANSWER,
            failures=refused,
        ),
        get(SESSION, "Who the session's token names", who, answer=_ANSWER, failures=_ELSEWHERE),
        Operation("DELETE", SESSION, "Log out", log_out, NoQuery, NoBody, answer=_ANSWER, failures=_ELSEWHERE),
    ]


def _shown(principal: str | None, session: Session | None) -> Response:
    told: dict[str, Any] = {"principal": principal, "csrf": None if session is None else session.csrf}
    return JSONResponse(told)
