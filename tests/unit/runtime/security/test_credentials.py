"""Tokens and certificates become principals; what is wrong with one is refused, and never quoted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Mapping
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.authenticators import Authenticators, NotAuthenticatedException, bearer_of, is_loopback
from bookgate.runtime.security.jwt import FileKeys, JwtRules, JwtVerifier, TokenRefused, UrlKeys, fetch, parse_keys
from bookgate.runtime.security.principal import ANONYMOUS, LOCAL, CertificateNames, Kind, Principal
from bookgate.runtime.security.static_tokens import StaticTokens, new_token, parse_tokens

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def key_set() -> str:
    keys = [
        RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True) | {"kid": "rsa"},
        ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True) | {"kid": "ec", "use": "sig"},
        OKPAlgorithm.to_jwk(ED_KEY.public_key(), as_dict=True) | {"kid": "ed"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac"},
    ]
    return json.dumps({"keys": keys})


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    given = {"sub": "spark", "aud": "bookgate", "iss": "idp", "exp": now + 60, "groups": ["etl"]} | changes
    return {key: value for key, value in given.items() if value is not None}


def made(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = "ec", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, {"kid": kid} if kid else None)


def forged(header: Mapping[str, Any], secret: bytes = b"") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims())]
    signed = b".".join(parts)
    signature = hmac.new(secret, signed, hashlib.sha256).digest() if secret else b""
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


@pytest.fixture
def verifier(tmp_path: Path) -> JwtVerifier:
    path = tmp_path / "keys.json"
    path.write_text(key_set())
    return JwtVerifier(FileKeys(path), JwtRules("idp", "bookgate"))


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA_KEY, "RS256", "rsa"), (EC_KEY, "ES256", "ec"), (ED_KEY, "EdDSA", "ed"), (EC_KEY, "ES256", None)],
)
def test_takes_a_token(verifier: JwtVerifier, key: Any, algorithm: str, kid: str | None) -> None:
    assert verifier.principal(made(key, algorithm, kid)) == Principal(Kind.JWT, "spark", frozenset({"etl"}))


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (lambda: made(exp=int(time.time()) - 31), "expired"),
        (lambda: made(exp=None), "no claim exp"),
        (lambda: made(nbf=int(time.time()) + 40), "not valid yet"),
        (lambda: made(aud="other"), "another audience"),
        (lambda: made(aud=None), "no claim aud"),
        (lambda: made(iss="other"), "another issuer"),
        (lambda: made(iss=None), "no claim iss"),
        (lambda: made(sub=None), "claim sub is no name"),
        (lambda: made(OTHER_KEY), "signature"),
        (lambda: made(OTHER_KEY, kid="new"), "no key is known"),
        (lambda: made(RSA_KEY, "RS512", "rsa"), "algorithm"),
        (lambda: made(ED_KEY, "EdDSA", "ec"), "no key is known"),
        (lambda: forged({"alg": "none"}), "algorithm"),
        (lambda: forged({"alg": "HS256", "kid": "rsa"}, b"secret"), "algorithm"),
        (lambda: forged({"alg": "HS256", "kid": "hmac"}, b"secret"), "algorithm"),
        (lambda: "no.token", "no JSON Web Token"),
        (lambda: "a" * 20_000, "longer"),
    ],
)
def test_refuses_a_token(verifier: JwtVerifier, token: Any, why: str) -> None:
    text = token()
    with pytest.raises(TokenRefused, match=why) as caught:
        verifier.principal(text)
    assert text not in str(caught.value)


def test_a_token_is_verified_once_while_it_and_the_keys_are_good(
    verifier: JwtVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    decode = jwt.decode

    def counted(token: str, *rest: Any, **more: Any) -> Any:
        verified.append(token)
        return decode(token, *rest, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    token = made(exp=int(time.time()) + 60)
    principals = {verifier.principal(token) for _ in range(3)}
    assert len(principals) == len(verified) == 1
    with monkeypatch.context() as later:
        end = time.time() + 60 + 31
        later.setattr(time, "time", lambda: end)
        verifier.principal(token)
    assert len(verified) == 2
    (tmp_path / "keys.json").write_text(
        json.dumps({"keys": [ECAlgorithm.to_jwk(OTHER_KEY.public_key(), as_dict=True)]})
    )
    verifier.principal(made(OTHER_KEY, kid="new"))  # for which the file is looked at
    with pytest.raises(TokenRefused, match="signature"):
        verifier.principal(token)


def test_a_clock_may_be_off(verifier: JwtVerifier) -> None:
    assert verifier.principal(made(exp=int(time.time()) - 20, nbf=int(time.time()) + 20)).name == "spark"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode() + ".e30.AA")))
def test_any_text_is_refused(verifier: JwtVerifier, text: str) -> None:
    with pytest.raises(TokenRefused):
        verifier.principal(text)


def test_key_sets_of_a_url_are_fetched_anew_and_outlive_failures() -> None:
    now, answers, asked = [0.0], [key_set()], []

    def get(url: str) -> str:
        asked.append(url)
        if not answers:
            raise OSError("down")
        return answers.pop()

    keys = UrlKeys("https://idp/keys", get, lambda: now[0])
    assert "ec" in keys.current()
    assert keys.problem is None
    now[0] = 301.0
    keys.current()
    _wait_for_fetches()
    assert len(asked) == 2
    assert "ec" in keys.current()
    keys.missing()
    assert len(asked) == 2, "a token with a key that is not known makes no storm"
    assert keys.problem == "key set https://idp/keys can't be used: down"
    answers.append(key_set())
    now[0] = 312.0
    keys.missing()
    _wait_for_fetches()
    assert len(asked) == 3
    assert keys.problem is None
    now[0] = 25 * 3600.0
    assert not keys.current()


def test_keys_are_fetched_again_once_there_are_threads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], []

    def get(url: str) -> str:
        asked.append(url)
        return key_set()

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    keys = UrlKeys("https://idp/keys", get, lambda: now[0])
    now[0] = 301.0
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", no_thread)
        assert "ec" in keys.current()
        assert keys.problem == "key set https://idp/keys can't be used: can't start new thread"
    now[0] = 312.0
    keys.current()
    _wait_for_fetches()
    assert len(asked) == 2
    assert keys.problem is None


def test_an_answer_that_is_no_http_is_a_key_set_that_can_not_be_used() -> None:
    now, cut = [0.0], IncompleteRead(b"")
    answers: list[str | Exception] = [cut, key_set(), cut]

    def get(url: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(IncorrectParameterException, match="can't be used: IncompleteRead"):
        UrlKeys("https://idp/keys", get)
    keys = UrlKeys("https://idp/keys", get, lambda: now[0])
    now[0] = 301.0
    keys.current()
    _wait_for_fetches()
    assert keys.problem is not None
    assert "IncompleteRead" in keys.problem
    assert "ec" in keys.current()


def test_a_key_set_that_comes_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends a byte, and each read of the next one has ten seconds of its own."""
    times = iter([0.0, 11.0])
    monkeypatch.setattr("bookgate.runtime.security.jwt.monotonic", lambda: next(times))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{")
                connection.recv(4096)

        slow = threading.Thread(target=answer)
        slow.start()
        with pytest.raises(TimeoutError, match="not there within 10 s"):
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/")
        slow.join(30)


def _wait_for_fetches() -> None:
    """Each has a thread of its own, which ends with it."""
    for thread in threading.enumerate():
        if thread.name == "bookgate-key-set":
            thread.join(10)
            assert not thread.is_alive()


def test_key_sets_come_over_tls_only() -> None:
    with pytest.raises(IncorrectParameterException, match="https"):
        UrlKeys("http://idp/keys", lambda url: key_set())


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": [1]}', '{"keys": []}', '{"keys": [{"kty": "oct", "k": ""}]}']
)
def test_refuses_key_sets(text: str) -> None:
    with pytest.raises(IncorrectParameterException):
        parse_keys(text)


@pytest.mark.parametrize("kid", [["a"], {"a": 1}, 7, True])
def test_refuses_keys_whose_id_is_no_text(kid: object) -> None:
    key = ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True)
    with pytest.raises(IncorrectParameterException, match="key 1 of the set can't be read: its kid is no text"):
        parse_keys(json.dumps({"keys": [{**key, "kid": kid}]}))


def test_static_tokens_are_read_anew_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    old, line = new_token("spark")
    path.write_text(f"# people\n{line}\n")
    tokens = StaticTokens(path)
    (file,) = tokens.files
    assert tokens.principal(old) == Principal(Kind.TOKEN, "spark")
    assert tokens.principal(old + "x") is None
    assert tokens.principal("") is None
    new, line = new_token("spark")
    path.write_text(f"{line}\n")
    file.refresh()
    assert tokens.principal(new) is not None
    assert tokens.principal(old) is None
    path.write_text("rubbish\n")
    file.refresh()
    assert tokens.principal(new) is not None
    assert "token file" in str(tokens.problem)
    path.write_text(f"{line}\n")
    file.refresh()
    assert tokens.problem is None


def test_a_token_that_was_written_just_now_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("")
    now = [100.0]
    tokens = StaticTokens(path, clock=lambda: now[0])
    token, line = new_token("spark")
    path.write_text(f"{line}\n")
    assert tokens.principal(token) is None
    now[0] += 0.2
    assert tokens.principal(token) == Principal(Kind.TOKEN, "spark")


def test_token_files_name_the_line_not_its_content() -> None:
    with pytest.raises(IncorrectParameterException, match="line 2") as caught:
        parse_tokens(f"a:{'0' * 64}\nb:{'f' * 63}\n")
    assert "fff" not in str(caught.value)
    with pytest.raises(IncorrectParameterException, match="already"):
        parse_tokens(f"a:{'0' * 64}\nb:{'0' * 64}\n")


def test_a_token_goes_before_a_certificate(tmp_path: Path) -> None:
    token, line = new_token("spark")
    (tmp_path / "tokens").write_text(line)
    doors = Authenticators(StaticTokens(tmp_path / "tokens"))
    proxy = CertificateNames("CN=proxy")
    assert str(doors.authenticate(bearer=token, certificate=proxy)) == "token:spark"
    assert str(doors.authenticate(certificate=proxy)) == "tls:CN=proxy"
    assert doors.authenticate(loopback=True) == ANONYMOUS
    with pytest.raises(NotAuthenticatedException) as caught:
        doors.authenticate(bearer=token[:-1], certificate=proxy)
    assert token[:-1] not in str(caught.value)


def test_who_is_on_this_machine_is_local_where_nobody_can_be_authenticated() -> None:
    assert Authenticators().authenticate(loopback=True) == LOCAL
    assert Authenticators().authenticate() == ANONYMOUS
    assert Authenticators(certificates=True).authenticate(loopback=True) == ANONYMOUS


def test_headers_and_addresses() -> None:
    assert bearer_of("Bearer abc ") == "abc"
    assert bearer_of("bearer abc") == "abc"
    assert bearer_of("Basic abc") is None
    assert bearer_of(None) is None
    for host, expected in {
        "127.0.0.1": True, "127.8.0.1": True, "::1": True, "[::1]": True, "localhost": True, "::ffff:127.0.0.1": True,
        "10.0.0.1": False, "example.org": False, "": False, "::": False,
    }.items():  # fmt: skip
        assert is_loopback(host) is expected, host
