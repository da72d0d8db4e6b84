"""The client of a bookie's HTTP admin, for commands: its address, the token, and rejections as one-line errors.

A token is sent over TLS only, or to this machine. A redirect is not followed, because it would send the token to an
address that the user did not name.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bookgate.ledger.bookie_info import HTTP, TLS_EXTENSION, Endpoint
from bookgate.ledger.errors import BKException, IncorrectParameterException
from bookgate.ledger.metadata_store import ServiceDiscovery
from bookgate.runtime.secret_files import secret_of
from bookgate.thinclient.gateways.tokens import may_carry_tokens

_TIMEOUT = 60.0
"""Seconds; a sanity test, or the first check of many files, takes long."""


class AdminRefusedException(BKException):
    """The HTTP admin is unreachable or rejected the request; the message contains its reason."""


@dataclass(frozen=True, slots=True)
class AdminHttp:
    """One bookie's HTTP admin: `http://host:port` or `https://…`, and the token if changes need one.

    `authorities` is a PEM file of authorities for TLS; None: the system's. `timeout_seconds` is how long a bookie may
    say nothing.
    """

    url: str
    token: str | None = None
    authorities: Path | None = None
    timeout_seconds: float = _TIMEOUT

    @property
    def may_carry_token(self) -> bool:
        """Whether a token that is sent there can't be read on the way."""
        return _keeps_secrets(urllib.request.Request(self.url))

    def get(self, path: str) -> Any:
        """Returns the response, parsed from JSON. Raises AdminRefusedException."""
        return self._ask("GET", path, None)

    def put(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Sends a change; otherwise like `get`."""
        return self._ask("PUT", path, body)

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, method=verb)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self.token:
            if not _keeps_secrets(request):
                raise AdminRefusedException(
                    f"a token is sent over TLS only: {self.url} is plain HTTP to another machine; set http_tls there "
                    "and write https://, or leave the token out"
                )
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self._opener().open(request, timeout=self.timeout_seconds) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise AdminRefusedException(f"{self.url} answers {error.code}: {_words(error)}") from None
        except http.client.InvalidURL as error:
            raise AdminRefusedException(f"{self.url} is no address of an HTTP admin: {error}") from None
        except http.client.HTTPException:
            # The response may be bytes of any protocol.
            raise AdminRefusedException(f"what listens at {self.url} is no HTTP admin; see its http_port") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AdminRefusedException(
                f"the HTTP admin at {self.url} does not answer: {getattr(reason, 'strerror', None) or reason}; "
                "see its http_port, or name the address with --http"
            ) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        # A proxy of the environment is meant for outside addresses, not for bookies.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirection()]
        if self.url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.authorities and str(self.authorities))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """See the module."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        fp.close()
        raise AdminRefusedException(
            f"what listens at {req.host} answers {code}: it sends to another address, which is not followed; name the "
            "HTTP admin itself with --http"
        )


def _keeps_secrets(request: urllib.request.Request) -> bool:
    has_port = request.host.rpartition(":")[2].isdecimal()
    return may_carry_tokens(request.host if has_port else f"{request.host}:", tls=request.type == "https")


def _words(error: urllib.error.HTTPError) -> str:
    """The reason in a response that rejects a request."""
    with error:
        try:
            return str(json.loads(error.read())["error"])
        except (OSError, ValueError, KeyError, TypeError):
            return str(error.reason)


async def admin_url(discovery: ServiceDiscovery, bookie_id: str) -> str:
    """The URL of a registered bookie's HTTP admin. Raises BookieHandleNotAvailableException,
    IncorrectParameterException.
    """
    info = (await discovery.bookie_service_info(bookie_id)).info
    endpoint = info.endpoint(HTTP)
    if endpoint is None:
        raise IncorrectParameterException(f"bookie {bookie_id} has registered no HTTP admin; name it with --http")
    return endpoint_url(endpoint)


def endpoint_url(endpoint: Endpoint) -> str:
    """The URL of a registered HTTP admin."""
    return f"{'https' if TLS_EXTENSION in endpoint.extensions else 'http'}://{endpoint.address}"


def read_token(token: str | None, file: Path | None) -> str | None:
    """The token given, or the content of the file; `-` is standard input. Raises IncorrectParameterException."""
    if token or file is None:
        return _checked(token) if token else None
    try:
        return _checked(secret_of(file).strip())
    except (OSError, ValueError) as error:
        raise IncorrectParameterException(f"the token file {file} can't be read: {error}") from error


def _checked(token: str) -> str:
    if not token:
        raise IncorrectParameterException("the token file is empty")
    # Rejected here, since the library's error message would contain the header, and so the token.
    if not token.isprintable() or not token.isascii():
        raise IncorrectParameterException("the token of the HTTP admin is not one line of ASCII, which a header takes")
    return token
