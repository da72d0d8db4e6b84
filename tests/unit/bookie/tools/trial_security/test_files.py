"""The directory that `bookgate security init` makes, made again."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from bookgate.bookie.commands import security
from bookgate.bookie.tools.trial_security import files
from bookgate.bookie.tools.trial_security.files import make, not_bound


def test_without_the_authoritys_key_what_is_there_stays_and_nothing_is_signed_anew(tmp_path: Path) -> None:
    make(tmp_path, ["bookie-1"], [])
    authority = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "ca.key").unlink()
    assert make(tmp_path, ["bookie-1"], []) == []
    with pytest.raises(ValueError, match=r"ca.key is not there any more, and bookie-2 has no certificate"):
        make(tmp_path, ["bookie-1", "bookie-2"], [])
    assert not (tmp_path / "ca.key").exists()
    assert (tmp_path / "ca.crt").read_bytes() == authority


def test_the_authoritys_key_stays_where_its_certificate_was_lost(tmp_path: Path) -> None:
    """What it has signed goes on being valid."""
    make(tmp_path, ["bookie-1"], [])
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.crt").unlink()
    assert make(tmp_path, ["bookie-1"], []) == [tmp_path / "ca.crt"]
    assert (tmp_path / "ca.key").read_bytes() == key
    check(tmp_path)
    signed, authority = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("bookies/bookie-1.crt", "ca.crt")
    )
    signed.verify_directly_issued_by(authority)
    (tmp_path / "ca.crt").unlink()
    (tmp_path / "ca.key").write_bytes(b"of another authority")
    with pytest.raises(ValueError, match="PEM"):
        make(tmp_path, ["bookie-1"], [])
    assert (tmp_path / "ca.key").read_bytes() == b"of another authority"


def test_a_run_that_was_interrupted_anywhere_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there works: certificates fit their keys and the authority, and servers know every token."""
    put, number = files._put, 0
    while True:
        directory, writes = tmp_path / str(number), 0

        def interrupted(path: Path, content: bytes, mode: int, most: int = number) -> None:
            nonlocal writes
            writes += 1
            if writes > most:
                path.with_name(path.name + ".new").write_bytes(content[:10])
                raise OSError(errno.ENOSPC, "No space left on device")
            put(path, content, mode)

        monkeypatch.setattr(files, "_put", interrupted)
        try:
            make(directory, ["bookie-1"], [])
        except OSError:
            monkeypatch.setattr(files, "_put", put)
            make(directory, ["bookie-1"], [])
            check(directory)
            number += 1
        else:
            break
    assert number > 10


def test_a_later_bookie_that_the_policy_does_not_bind_is_told(tmp_path: Path) -> None:
    """Its certificate and token look like the others', and it could not register."""
    make(tmp_path, ["bookie-1", "node7"], [])
    assert not_bound(tmp_path, ["bookie-1", "node7", "bookie-2"]) == []
    made = CliRunner().invoke(security.app, ["init", str(tmp_path), "--bookie", "bookie-2", "--bookie", "node8"])
    assert "tls:CN=node8, token:node8; add them to its bindings" in made.stderr
    assert "bookie-2" not in made.stderr
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text().replace('"token:node7"', '"token:node7", "tls:CN=node8", "token:node8"'))
    assert not_bound(tmp_path, ["node7", "node8"]) == []


def check(directory: Path) -> None:
    context = ssl.create_default_context(cafile=directory / "ca.crt")
    context.load_cert_chain(directory / "bookies/bookie-1.crt", directory / "bookies/bookie-1.key")
    signs = files._authority(directory)
    assert signs is not None
    known = [line.split(":")[0] for line in (directory / "tokens").read_text().splitlines()]
    tokens = [path.stem for path in (*directory.glob("*.token"), *(directory / "bookies").glob("*.token"))]
    assert set(tokens) <= set(known)
    assert (directory / "policy.toml").read_text().endswith(files._POLICY[-20:])
    assert list(directory.rglob("*.new")) == []
