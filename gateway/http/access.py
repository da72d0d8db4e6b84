"""Who may use HTTP admin for what.

With a token configured, whatever changes something, writes to ledgers or shows what is in them needs it as
`Authorization: Bearer …`. Without one, changes are taken on a loopback address only, and there only from requests that
name this host by address or as `localhost`, as entries are: a page in a browser on this machine can be made to send
others (its own name pointed at 127.0.0.1). Nor are requests that a browser sends for a page of another origin, on any
address: reading does something too, where it writes a ledger as a test. Everything else is open, as BookKeeper's is.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from bookgate.gateway.http.errors import HttpError
from bookgate.ledger.errors import IncorrectParameterException


class Need(enum.Enum):
    """What an operation needs of the caller."""

    NOTHING = "nothing"
    CONTENT = "content"
    """Shows what applications wrote, or writes a ledger of its own as a test: the token where there is one."""
    WRITE = "write"


class Access:
    """See the module. `loopback`: the listener can't be reached from other machines."""

    def __init__(self, token: str | None, *, loopback: bool) -> None:
        self._token = token.encode() if token else None
        self._loopback = loopback

    @property
    def has_token(self) -> bool:
        return self._token is not None

    @property
    def changes(self) -> str:
        """What a change takes: `token`, nothing (`open`), or there is no way (`off`)."""
        if self.has_token:
            return "token"
        return "open" if self._loopback else "off"

    def check(self, need: Need, headers: Mapping[str, str]) -> None:
        """Raises HttpError: 401 without the right token, 403 where none is configured and none would be safe."""
        if need is Need.NOTHING:
            return
        if self._token is not None:
            if self._is_token(headers.get("authorization", "")):
                return
            raise HttpError(
                401, "this needs the token: send it as 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
            )
        if need is Need.WRITE and not self._loopback:
            raise HttpError(
                403,
                "changes over HTTP are off: no token is configured and the address is open to other machines; set "
                "http_token_file (or http_token), or let HTTP listen on 127.0.0.1",
            )
        if _is_for_another_page(headers):
            raise HttpError(403, "without a token, a page of another origin gets neither entries nor changes")
        if self._loopback and not _names_this_host(headers.get("host", "")):
            raise HttpError(
                403, "without a token, entries and changes need localhost or an IP address in the URL; use those"
            )

    def _is_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        assert self._token is not None, "asked by `check` only"
        # The comparison comes first and takes as long whatever is given.
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        return same and scheme.lower() == "bearer"


def _is_for_another_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser says so. Tools say nothing, and "none" is what somebody has typed."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.lower() not in ("same-origin", "none")
    # A browser that is older, or reached this server without TLS by another name than localhost.
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _names_this_host(host: str) -> bool:
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return _is_address(name) and (not port or port.startswith(":"))
    name = host.partition(":")[0]
    return name.lower() in ("", "localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a listener at this address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_token(token: str | None, file: Path | None) -> str | None:
    """The configured token; None where there is none. Raises IncorrectParameterException."""
    if file is None:
        return token
    if token is not None:
        raise IncorrectParameterException("set http_token or http_token_file, not both")
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IncorrectParameterException(f"http_token_file {file} can't be read: {error}") from error
    if not content:
        raise IncorrectParameterException(f"http_token_file {file} is empty; write the token into it")
    return content
