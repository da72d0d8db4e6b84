"""The providers of authentication that come with a bookie, and how others are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookgate.bookie.protocol.auth_gate import AuthenticationException
from bookgate.bookie.protocol.authentication import TLS_ROLE, TOKEN, load_provider, role_of
from bookgate.ledger.errors import IncorrectParameterException


def test_any_token_of_the_file_is_taken_and_the_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("old\n\n  new  \n")
    provider = load_provider(TOKEN, {"file": str(file)})
    for token in (b"old", b"new", b"new\n"):
        session = provider.new_session("peer")
        assert session.process(token) == b""
        assert session.authenticated
    file.write_text("new\n")
    for token in (b"old", b"", b"ne"):
        session = provider.new_session("peer")
        with pytest.raises(AuthenticationException):
            session.process(token)
        assert not session.authenticated


def test_a_token_file_that_vanishes_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("secret")
    provider = load_provider(TOKEN, {"file": str(file)})
    file.unlink()
    with pytest.raises(AuthenticationException, match="can't be read"):
        provider.new_session("peer").process(b"secret")


@pytest.mark.parametrize("content", [None, "", " \n\n"])
def test_a_token_file_without_tokens_is_refused_at_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_text(content)
    with pytest.raises(IncorrectParameterException, match="tokens"):
        load_provider(TOKEN, {"file": str(file)})


def certificate(*units: str) -> dict[str, Any]:
    return {"subject": ((("commonName", "client"),), *((("organizationalUnitName", unit),) for unit in units))}


@pytest.mark.parametrize(
    ("units", "role"),
    [
        (["0:writer,reader;1:cluster"], "writer"),
        (["1:cluster;0: reader , writer"], "reader"),
        (["research", "0:writer"], "writer"),
        (["1:cluster"], None),
        (["0:"], None),
        (["writer"], None),
        ([], None),
    ],
)
def test_the_first_role_of_a_certificate(units: list[str], role: str | None) -> None:
    assert role_of(certificate(*units)) == role


def test_roles() -> None:
    provider = load_provider(TLS_ROLE, {"roles": "writer, admin"})
    session = provider.new_session("peer")
    assert not session.authenticated
    session.secured(certificate("0:admin"))
    assert session.authenticated
    for wrong in (certificate("0:reader,admin"), certificate(), None):
        with pytest.raises(AuthenticationException):
            provider.new_session("peer").secured(wrong)
    with pytest.raises(AuthenticationException):
        provider.new_session("peer").process(b"admin")


def test_an_empty_role_would_let_in_everyone() -> None:
    with pytest.raises(IncorrectParameterException, match="empty role"):
        load_provider(TLS_ROLE, {"roles": "writer,,admin"})


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(IncorrectParameterException, match=r"nobody.*bookgate-tls-role, bookgate-token"):
        load_provider("nobody", {})
    with pytest.raises(IncorrectParameterException, match="auth_options"):
        load_provider(TOKEN, {"path": "x"})
