"""JSON Web Tokens: who their bearer is, by signature, issuer, audience and time.

Algorithms are RS256, ES256 and EdDSA and nothing else: `none`, and HMAC with a public key for a secret, are refused
before any key is looked at. The key decides which algorithm it is for, never the token alone. `exp` is demanded, with
`nbf` and `iat` it may be 30 s off. One claim names the principal (`sub`), another its groups.

Keys are a JWK set (RFC 7517), from a file, read anew when it changes, or from an HTTPS URL, fetched in a thread of its
own: at the start, every five minutes, and when a token names a key that is not known, at most every ten seconds. Keys
that were fetched stay when a fetch fails, for a day.

Needs the extra `security` (PyJWT, cryptography). Not its job: what the principal may do.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.clock import monotonic
from bookgate.runtime.logs import log_event
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.watched_file import WatchedFile

try:
    import jwt
except ImportError as error:  # pragma: no cover - without the extra
    raise IncorrectParameterException(
        "JSON Web Tokens need PyJWT and cryptography; install bookgate[security]"
    ) from error

_LOG = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256", "EdDSA")
LEEWAY_SECONDS = 30
_MOST_BYTES = 16 * 1024
"""Of one token; a longer one is not looked at."""
_MOST_VERIFIED = 1024
"""Tokens that are known to be good."""
_REFRESH_SECONDS = 300.0
_SOONEST_SECONDS = 10.0
_STALE_SECONDS = 24 * 3600.0
_FETCH_SECONDS = 10.0
_MOST_KEY_SET_BYTES = 1024 * 1024
_UNUSABLE = (OSError, HTTPException, ValueError, IncorrectParameterException)
"""What a fetch raises that brings no keys."""

_TYPES = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}

Keys = Mapping[str | None, tuple[jwt.PyJWK, ...]]
"""By key id; None: keys without one."""


class TokenRefused(Exception):
    """A token that is not taken; the message says why and has nothing of the token in it."""


def parse_keys(text: str) -> Keys:
    """Reads a JWK set; keys for something else are left out. Raises IncorrectParameterException."""
    try:
        content = json.loads(text)
        entries = content["keys"]
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise TypeError(entries)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IncorrectParameterException("no JSON Web Key Set; it is an object with the list `keys`") from error
    keys: dict[str | None, tuple[jwt.PyJWK, ...]] = {}
    for number, entry in enumerate(entries, start=1):
        algorithm = _TYPES.get(str(entry.get("kty")))
        if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
            continue
        try:
            key = jwt.PyJWK(entry, algorithm=algorithm)
        except Exception as error:
            raise IncorrectParameterException(
                f"key {number} of the set can't be read: {type(error).__name__}"
            ) from error
        kid = entry.get("kid")
        if not isinstance(kid, str | None):
            raise IncorrectParameterException(f"key {number} of the set can't be read: its kid is no text")
        keys[kid] = (*keys.get(kid, ()), key)
    if not keys:
        raise IncorrectParameterException(f"no key of the set is for {', '.join(ALGORITHMS)}")
    return keys


class KeySource(Protocol):
    """Where keys come from."""

    def current(self) -> Keys:
        """As they are known now; never waits."""

    def missing(self) -> None:
        """A token named a key that is not known: there may be new ones."""

    @property
    def problem(self) -> str | None:
        """Why the keys as they are now were refused, or can't be had; None: they count."""


class FileKeys:
    """Keys of a file. Raises IncorrectParameterException when it can't be used at first."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, parse_keys, "key set")

    def current(self) -> Keys:
        return self._file.value

    def missing(self) -> None:
        self._file.refresh()

    @property
    def problem(self) -> str | None:
        return self._file.problem


def fetch(url: str) -> str:
    """The content at an HTTPS URL. Raises OSError, ValueError, HTTPException."""
    end = monotonic() + _FETCH_SECONDS
    body = b""
    with urllib.request.build_opener(_HttpsOnly).open(url, timeout=_FETCH_SECONDS) as response:
        while part := response.read1(_MOST_KEY_SET_BYTES + 1):
            body += part
            if len(body) > _MOST_KEY_SET_BYTES:
                raise ValueError(f"more than {_MOST_KEY_SET_BYTES} bytes")
            # The timeout is of each read alone: a server that sends a byte now and then would never come to it.
            if monotonic() > end:
                raise TimeoutError(f"not there within {_FETCH_SECONDS:g} s")
    return body.decode("utf-8")


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A redirection to a channel without TLS would let anybody on the way choose the keys."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.lower().startswith("https://"):
            raise ValueError(f"redirected to {newurl.partition(':')[0]}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class UrlKeys:
    """Keys from a URL; see the module. The first fetch is waited for, so that a wrong address shows at the start."""

    def __init__(self, url: str, get: Callable[[str], str] = fetch, clock: Callable[[], float] = monotonic) -> None:
        """Raises IncorrectParameterException for a URL without TLS, or whose keys can't be had."""
        if not url.lower().startswith("https://"):
            raise IncorrectParameterException(f"key set {url}: it is fetched by https:// only")
        self._url = url
        self._get = get
        self._clock = clock
        self._lock = threading.Lock()
        self._fetching = False
        self._problem: str | None = None
        self._asked = clock()
        try:
            self._keys = parse_keys(get(url))
        except _UNUSABLE as error:
            raise IncorrectParameterException(f"key set {url} can't be used: {error}") from error
        self._fetched = clock()

    def current(self) -> Keys:
        age = self._clock() - self._fetched
        if age >= _REFRESH_SECONDS:
            self._fetch_soon()
        return self._keys if age < _STALE_SECONDS else {}

    def missing(self) -> None:
        self._fetch_soon()

    @property
    def problem(self) -> str | None:
        self.current()
        return self._problem

    def _fetch_soon(self) -> None:
        with self._lock:
            now = self._clock()
            if self._fetching or now - self._asked < _SOONEST_SECONDS:
                return
            self._fetching, self._asked = True, now
        try:
            threading.Thread(target=self._fetch, name="bookgate-key-set", daemon=True).start()
        except RuntimeError as error:
            # Threads are short for now; the keys that are there stay.
            self._fetching = False
            self._kept(error)

    def _fetch(self) -> None:
        try:
            self._keys = parse_keys(self._get(self._url))
            self._fetched = self._clock()
            self._problem = None
        except _UNUSABLE as error:
            self._kept(error)
        finally:
            self._fetching = False

    def _kept(self, error: Exception) -> None:
        self._problem = f"key set {self._url} can't be used: {error}"
        log_event(_LOG, "key_set", logging.ERROR, state="kept-old", url=self._url, reason=error)


@dataclass(frozen=True, slots=True)
class JwtRules:
    """What a token must say."""

    issuer: str
    audience: str
    name_claim: str = "sub"
    groups_claim: str = "groups"


class _Verified(NamedTuple):
    """A token that need not be verified again: by these keys, before this time of the wall clock."""

    principal: Principal
    keys: Keys
    until: float


class JwtVerifier:
    """Tells whose a token is. Every call of a caller shows the same one: its signature is verified once."""

    def __init__(self, source: KeySource, rules: JwtRules) -> None:
        self._source = source
        self._rules = rules
        self._verified: dict[str, _Verified] = {}

    @property
    def problem(self) -> str | None:
        """Why the key set as it is now was refused, or can't be had; None: it counts."""
        return self._source.problem

    def principal(self, token: str) -> Principal:
        """The bearer. Raises TokenRefused."""
        keys, known = self._source.current(), self._verified.get(token)
        if known is not None and known.keys is keys and time.time() < known.until:
            return known.principal
        claims = self._claims(token)
        principal = self._named(claims)
        if len(self._verified) >= _MOST_VERIFIED:
            self._verified.clear()
        self._verified[token] = _Verified(principal, keys, int(claims["exp"]) + LEEWAY_SECONDS)
        return principal

    def _named(self, claims: Mapping[str, Any]) -> Principal:
        name = claims.get(self._rules.name_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise TokenRefused(f"its claim {self._rules.name_claim} is no name")
        return Principal(Kind.JWT, name, _groups(claims.get(self._rules.groups_claim)))

    def _claims(self, token: str) -> Mapping[str, Any]:
        if len(token) > _MOST_BYTES:
            raise TokenRefused(f"it is longer than {_MOST_BYTES} bytes")
        if not token.isascii():
            raise TokenRefused("it is no JSON Web Token")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise TokenRefused("it is no JSON Web Token") from error
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise TokenRefused(f"its algorithm is none of {', '.join(ALGORITHMS)}")
        keys = self._candidates(header.get("kid"), algorithm)
        problem = "no key is known that could have signed it"
        for key in keys:
            try:
                return self._checked(token, key, algorithm)
            except jwt.InvalidSignatureError:
                problem = "its signature is wrong"
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                raise TokenRefused(_in_words(error)) from error
        raise TokenRefused(problem)

    def _candidates(self, kid: str | None, algorithm: str) -> Sequence[jwt.PyJWK]:
        known = self._source.current()
        if kid is not None and kid not in known and None not in known:
            self._source.missing()
            known = self._source.current()
        found = known.get(kid, ()) or known.get(None, ())
        if kid is None and not found:
            found = tuple(key for keys in known.values() for key in keys)
        return [key for key in found if key.algorithm_name == algorithm]

    def _checked(self, token: str, key: jwt.PyJWK, algorithm: str) -> Mapping[str, Any]:
        rules = self._rules
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=rules.audience,
            issuer=rules.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims


def _groups(claim: object) -> frozenset[str]:
    if isinstance(claim, str):
        claim = [claim]
    if not isinstance(claim, list):
        return frozenset()
    return frozenset(each for each in claim if isinstance(each, str) and each.isprintable())


_WORDS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidIssuedAtError, "it was issued in the future"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "it is of another issuer"),
)


def _in_words(error: Exception) -> str:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"it has no claim {error.claim}"
    return next((words for kind, words in _WORDS if isinstance(error, kind)), "it can't be read")
