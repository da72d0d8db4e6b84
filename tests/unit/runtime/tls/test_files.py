"""Certificate files of a server: what can't be used is said once a change, and no key's password is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from bookgate.gateway.tls import ServerCertificates
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.tls.files import ServerTlsFiles
from bookgate.runtime.tls.server_context import ServerContexts

KINDS: dict[str, Callable[[ServerTlsFiles], Callable[[], object]]] = {
    "ssl": lambda files: ServerContexts(files).context,
    "grpc": lambda files: ServerCertificates(files).changed,
}


@pytest.fixture
def files(tmp_path: Path) -> ServerTlsFiles:
    files = ServerTlsFiles(f"{tmp_path}/cert.pem", f"{tmp_path}/key.pem")
    install(files, trustme.CA())
    return files


def install(files: ServerTlsFiles, authority: trustme.CA) -> None:
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(files.key)
    issued.cert_chain_pems[0].write_to_path(files.cert)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_that_does_not_match_is_said_once_a_change(
    kind: str, files: ServerTlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    connect = KINDS[kind](files)

    def told() -> list[str]:
        for _ in range(4):
            connect()
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return ["kept-old" if "state=kept-old" in line else line for line in found]

    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(files.key)
    assert told() == ["kept-old"]
    os.unlink(files.key)
    assert told() == ["kept-old"]
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(files.key)
    assert told() == ["kept-old"]
    caplog.set_level("INFO")
    install(files, trustme.CA())
    assert told() == [f"event=tls state=renewed cert={files.cert}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_with_a_password_is_refused_and_nobody_is_asked(kind: str, files: ServerTlsFiles) -> None:
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    protection = serialization.BestAvailableEncryption(b"secret")
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    Path(files.key).write_bytes(key.private_bytes(encoding, form, protection))
    with pytest.raises(IncorrectParameterException, match="protected by a password"):
        KINDS[kind](files)
