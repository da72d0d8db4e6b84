"""Access control of HTTP.

With principals (docs/protocol/security.md) each route asks the policy for its action. The caller is identified by a
bearer token, a browser session, or a client certificate.

Without principals there may be one token for all: operations that change something, write to ledgers or show their
contents need it as `Authorization: Bearer …`, or a session that began with it. Without any token, changes are accepted
on a loopback address only. Everything else is open, as in BookKeeper.

Requests that another site's page makes a browser send are always rejected: requests under a name that is not the
server's (`host_names`), requests of another origin, and changes by a session without its CSRF token. With a token that
counts only changes of another origin are: it may be a proxy's, which adds it to what a browser sends for any page. With
principals the audit trail tells of them, and of what is over a rate.
"""

from __future__ import annotations

import enum
import hmac
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from bookgate.gateway.http.caller import ANYBODY, DOOR, Caller
from bookgate.gateway.http.errors import HttpError, OverLimit
from bookgate.gateway.http.host_names import is_known_name
from bookgate.gateway.http.login_attempts import LoginAttempts, of_address
from bookgate.gateway.http.sessions import LONGEST_SECONDS, Session, Sessions
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.authenticators import NotAuthenticatedException, bearer_of, is_loopback
from bookgate.runtime.security.principal import ANONYMOUS, Kind, Principal, names_of_certificate
from bookgate.runtime.security.refused_files import RefusedFiles

CSRF_HEADER = "x-csrf-token"
PASSED_ON_HEADER = "bookgate-principal"
"""Who is behind a request that a bookie passes on to its gateway's process; it counts with that secret only."""

CERTIFICATE_STATE = "certificate"
"""What the connection's state calls the client's certificate."""

_FORWARDED = "x-forwarded-for"
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_READING = ("GET", "HEAD", "OPTIONS")
_LOG_IN, _LOG_OUT = "log-in", "log-out"
"""Actions of the audit trail; no policy has them."""
_UNKNOWN_NAME = (
    "this server is not known by that name: use localhost, an IP address or its own name in the URL, or add the name "
    "to http_host_names"
)
_HOST_CHARACTERS = 100
"""Of a name that is not known, for the audit trail."""


class Need(enum.Enum):
    """What an operation needs of the caller where there are no principals."""

    NOTHING = "nothing"
    CONTENT = "content"
    """Shows what applications wrote, or writes a ledger of its own as a test: the token where there is one."""
    WRITE = "write"


@dataclass(frozen=True)
class Asked:
    """What a route asks for: its action (None: nothing), and what it needs without principals. `any_host`: machines
    ask for it, by whatever name. `scope_id`: the scope that is meant where the request names none."""

    action: Action | None
    need: Need
    any_host: bool = False
    scope_id: int = 0


class Access:
    """See the module. `loopback`: the listener can't be reached from other machines."""

    def __init__(
        self,
        token: str | None,
        *,
        loopback: bool,
        names: Collection[str] = (),
        control: AccessControl | None = None,
        passed_on: bool = False,
        sessions: Sessions | None = None,
        attempts: LoginAttempts | None = None,
    ) -> None:
        """`names`: the server's own. `passed_on`: the one token is a bookie's, which says who asks."""
        self._token = token.encode() if token else None
        self._loopback = loopback
        self._names = names
        self._control = control
        self._passed_on = passed_on
        self._sessions = sessions or Sessions()
        self._attempts = attempts or LoginAttempts()

    @property
    def refused_files(self) -> RefusedFiles:
        """Of policy, tokens and keys what can't be used as it is now: what was read before is in force."""
        return {} if self._control is None else self._control.refused_files

    @property
    def has_token(self) -> bool:
        """Whether there is anything to authenticate with."""
        return self._token is not None or self._control is not None

    def needs_token(self, asked: Asked) -> bool:
        """Whether a route is for those only who show one."""
        if self._control is not None:
            return asked.action is not None
        return self._token is not None and asked.need is not Need.NOTHING

    @property
    def changes(self) -> str:
        """What a change takes: `token`, nothing (`open`), or there is no way (`off`)."""
        if self.has_token:
            return "token"
        return "open" if self._loopback else "off"

    @property
    def has_rates(self) -> bool:
        """Whether somebody may be over a rate."""
        return self._control is not None

    def caller(self, asked: Asked, request: Request) -> Caller:
        """Who asks, if they may. Raises HttpError: 401 without the right credentials, 403 where these do not help;
        OverLimit for who asks too often."""
        headers = request.headers
        # Where there is no token none is right, and showing one means nothing.
        bearer = bearer_of(headers.get("authorization")) if self.has_token else None
        if not asked.any_host:
            self._check_host(bearer, asked.action, request)
        session = None
        if bearer is not None:
            self._check_bearer(bearer, asked.action, request)
        else:
            session = self._session(request)
        if session is not None:
            self._check_session(session, asked.action, request)
            bearer = session.bearer
        if self._passed_on:
            return self._caller_passed_on(bearer, asked.action, request)
        if self._control is not None:
            return self._caller_by_policy(self._control, asked, request, bearer)
        self.check(asked.need, headers, bearer)
        return ANYBODY

    def check(self, need: Need, headers: Mapping[str, str], bearer: str | None) -> None:
        """Without principals. Raises HttpError: 401 without the right token, 403 where none would be safe."""
        if need is Need.NOTHING:
            return
        if self._token is not None:
            if bearer is not None and self._is_token(bearer):
                return
            raise HttpError(401, "this needs the token: send it as 'Authorization: Bearer TOKEN'", _CHALLENGE)
        if need is Need.WRITE and not self._loopback:
            raise HttpError(
                403,
                "changes over HTTP are off: no token is configured and the address is open to other machines; set "
                "http_token_file (or http_token), or let HTTP listen on 127.0.0.1",
            )
        if is_for_another_page(headers):
            raise HttpError(403, "without a token, a page of another origin gets neither entries nor changes")

    def bearer(self, request: Request) -> str | None:
        """The token that a request was let through by, its own or its session's; None where there is none."""
        session = self._session(request)
        return bearer_of(request.headers.get("authorization")) or (session.bearer if session is not None else None)

    # --- sessions ---

    def log_in(self, request: Request, bearer: str) -> tuple[str, str, Session]:
        """Begins a session: who it is, what the cookie says, the session.

        Raises HttpError: 401 for a wrong token; OverLimit after too many of them or too many logins.
        """
        if is_for_another_page(request.headers):
            raise self._refused(_LOG_IN, request, "a page of another origin can't log in here")
        address = of_address(peer_of(request))
        self._check_attempts(address, request, "too many wrong tokens came from this address")
        try:
            name = self._name_of(request, bearer)
        except HttpError:
            self._attempts.spend(address)
            raise
        self._check_attempts(name, request, f"{name} has logged in too often")
        self._attempts.spend(name)
        return name, *self._sessions.begin(bearer)

    def _name_of(self, request: Request, bearer: str) -> str:
        """Whose token it is. Raises HttpError."""
        if self._control is not None:
            return str(self._principal(self._control, request, bearer))
        if self._token is not None and self._is_token(bearer):
            return "token:http_token"
        raise HttpError(401, "that is not a token of this server", _CHALLENGE)

    def _check_attempts(self, who: str, request: Request, problem: str) -> None:
        """Raises OverLimit."""
        wait = self._attempts.seconds_to_wait(who)
        if wait <= 0:
            return
        if self._control is not None:
            self._control.limited(ANONYMOUS, _LOG_IN, problem, door=DOOR, peer=peer_of(request))
        raise OverLimit(problem, wait)

    def logged_in(self, request: Request) -> tuple[str, Session | None] | None:
        """Who asks, by a token that a proxy has put in front of the request, or by its session: if there is one and its
        token still counts."""
        bearer = bearer_of(request.headers.get("authorization"))
        if bearer is not None and self.has_token:
            try:
                return self._name_of(request, bearer), None
            except HttpError:
                return None
        session = self._session(request)
        if session is None:
            return None
        if self._control is None:
            return ("token:http_token", session) if self._token and self._is_token(session.bearer) else None
        try:
            return str(self._principal(self._control, request, session.bearer)), session
        except HttpError:
            return None

    def log_out(self, request: Request) -> None:
        """Ends the request's session. Raises HttpError without its CSRF token."""
        session, name = self._session(request), _session_name(request)
        if session is not None and name is not None:
            self._check_session(session, _LOG_OUT, request)
            self._sessions.end(name)

    def _check_host(self, bearer: str | None, action: str | None, request: Request) -> None:
        """Raises HttpError under a name that is not this server's, except with a token that counts: a page that had its
        name lead here can make one up, but has none.
        """
        if is_known_name(request.headers.get("host", ""), self._names):
            return
        if bearer is None:
            raise self._refused(action, request, _UNKNOWN_NAME)
        self._name_of(request, bearer)

    def _check_bearer(self, bearer: str, action: str | None, request: Request) -> None:
        """Raises HttpError where a page of another origin has a browser change something. What such a page has the
        browser read it does not see.
        """
        if request.method not in _READING and is_for_another_page(request.headers):
            problem = "a page of another origin changes nothing, not by a token either"
            raise self._refused(action, request, problem, self._holder(bearer, request))

    def _check_session(self, session: Session, action: str | None, request: Request) -> None:
        """Raises HttpError where the request may be another page's doing."""
        problem = None
        if is_for_another_page(request.headers):
            problem = "a page of another origin gets nothing by this session"
        elif request.method not in _READING and not session.has_csrf(request.headers.get(CSRF_HEADER, "")):
            problem = f"a change by a session needs the header {CSRF_HEADER}, which the console sends"
        if problem is not None:
            raise self._refused(action, request, problem, self._holder(session.bearer, request))

    def _holder(self, bearer: str, request: Request) -> Principal:
        """Whose token it is, for the audit trail."""
        if self._control is None:
            return ANONYMOUS
        try:
            return self._principal(self._control, request, bearer)
        except HttpError:
            return ANONYMOUS

    def _session(self, request: Request) -> Session | None:
        if not self.has_token:
            return None
        name = _session_name(request)
        return None if name is None else self._sessions.find(name)

    def _refused(
        self, action: str | None, request: Request, problem: str, principal: Principal = ANONYMOUS, status: int = 403
    ) -> HttpError:
        """The refusal of what no policy allows, which is in the audit trail then."""
        if self._control is not None:
            host = request.headers.get("host", "")[:_HOST_CHARACTERS]
            path = path_of(request)
            where = f"{path} at {host}" if problem is _UNKNOWN_NAME else path
            self._control.refused(principal, action or "-", where, problem, door=DOOR, peer=peer_of(request))
        return HttpError(status, problem, _CHALLENGE if status == 401 else None)

    # --- principals ---

    def _caller_by_policy(self, control: AccessControl, asked: Asked, request: Request, bearer: str | None) -> Caller:
        if asked.action is None:
            return Caller(control=control, peer=peer_of(request))
        caller = Caller(self._principal(control, request, bearer), control, peer_of(request))
        caller.take("calls_per_second")
        if bearer is None and is_for_another_page(request.headers):
            # Also by a certificate: a browser shows it for whatever page asks.
            problem = "without a token, a page of another origin gets nothing"
            raise self._refused(asked.action, request, problem, caller.principal)
        if asked.action.is_of_ledgers:
            # Which ledger it is the handler knows.
            caller.reach(asked.action, _scope(request, asked.scope_id))
        else:
            caller.check(asked.action)
        control.counts[DOOR, caller.principal.kind, "allowed"] += 1
        return caller

    def _principal(self, control: AccessControl, request: Request, bearer: str | None) -> Principal:
        if bearer is not None and self._token is not None and self._is_token(bearer):
            return Principal(Kind.TOKEN, "http_token")
        certificate = request.scope.get("state", {}).get(CERTIFICATE_STATE)
        try:
            return control.authenticate(
                door=DOOR,
                peer=peer_of(request),
                bearer=bearer,
                certificate=names_of_certificate(certificate) if certificate else None,
                loopback=_is_local(request),
            )
        except NotAuthenticatedException:
            raise HttpError(401, NotAuthenticatedException.PUBLIC, _CHALLENGE) from None

    def _caller_passed_on(self, bearer: str | None, action: str | None, request: Request) -> Caller:
        """Whose call it is has taken it from its rate of calls at the bookie."""
        if bearer is None or not self._is_token(bearer):
            raise self._refused(action, request, "only this bookie asks here", status=401)
        if self._control is None:
            return ANYBODY
        told = json.loads(request.headers.get(PASSED_ON_HEADER, "{}"))
        principal = Principal(Kind(told["kind"]), told["name"], frozenset(told["groups"]))
        return Caller(principal, self._control, told["peer"])

    def _is_token(self, given: str) -> bool:
        assert self._token is not None, "asked where there is one"
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)


def passed_on_header(caller: Caller) -> str:
    """The caller, for the process that a request is passed on to."""
    principal = caller.principal
    told = {"kind": principal.kind, "name": principal.name, "groups": sorted(principal.groups), "peer": caller.peer}
    return json.dumps(told)


def set_cookie(response: Response, request: Request, name: str) -> None:
    """Lets the browser hold the session: no script sees it, no other page's request carries it."""
    response.set_cookie(
        _cookie_of(request),
        name,
        max_age=int(LONGEST_SECONDS),
        path="/",
        secure=_is_secure(request),
        httponly=True,
        samesite="strict",
    )


def drop_cookie(response: Response, request: Request) -> None:
    """Lets the browser forget it."""
    response.delete_cookie(_cookie_of(request), path="/", secure=_is_secure(request), httponly=True, samesite="strict")


def _cookie_of(request: Request) -> str:
    """Browsers keep cookies by host, whatever the port: servers side by side have a name each."""
    server = request.scope.get("server")
    return f"bookgate_session_{server[1] if server else 0}"


def _session_name(request: Request) -> str | None:
    """What the session's cookie says. Not by `request.cookies`: earlier versions of Python take many seconds to unquote
    what others may say (CVE-2024-7592).
    """
    wanted = _cookie_of(request)
    found: str | None = None
    for header in request.headers.getlist("cookie"):
        for cookie in header.split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == wanted:
                found = value.strip()
    return found


def _is_secure(request: Request) -> bool:
    """Whether the browser speaks TLS, if only with a proxy: who says so without it gets a cookie of no use."""
    return "https" in (request.scope.get("scheme"), request.headers.get("x-forwarded-proto"))


def _is_local(request: Request) -> bool:
    """Whether it is of this machine, and not passed on from another by a proxy here."""
    return request.client is not None and is_loopback(request.client.host) and _FORWARDED not in request.headers


def _scope(request: Request, default: int) -> int:
    """The scope that a request names; what is no number is refused later."""
    try:
        return int(request.query_params.get("ledger_scope_id", default))
    except ValueError:
        return default


def peer_of(request: Request) -> str:
    """The address that a request came from, a proxy's where there is one: what a header says, anybody may say."""
    return request.client.host if request.client is not None else "?"


def path_of(request: Request) -> str:
    """The path that is asked for. Of `request.url` earlier versions of Starlette take it from a header `Host` with a
    path in it.
    """
    path: str = request.scope["path"]
    return path


def is_for_another_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser says so. Tools say nothing, and "none" is what somebody has typed."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.lower() not in ("same-origin", "none")
    # A browser that is older, or reached this server without TLS by another name than localhost.
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
