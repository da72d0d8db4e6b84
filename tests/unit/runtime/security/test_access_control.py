"""What doors ask, the audit trail, files that change under way, and the commands that prepare them."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from typer.testing import CliRunner

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.audit_trail import AuditTrail
from bookgate.runtime.security.authenticators import Authenticators, NotAuthenticatedException
from bookgate.runtime.security.decision import Resource
from bookgate.runtime.security.principal import ANONYMOUS, LOCAL, Kind, Principal
from bookgate.runtime.security.refused_files import FileKind, refused_samples
from bookgate.runtime.security.settings import SecuritySettings
from bookgate.runtime.security.static_tokens import StaticTokens, new_token
from bookgate.runtime.security.watched_file import WatchedFile
from bookgate.thinclient.commands.main import app

READERS = '[[bindings]]\nprincipals = ["token:*"]\nrole = "reader"\n'
SPARK = Principal(Kind.TOKEN, "spark")


def with_policy(directory: Path) -> tuple[Path, AccessControl, WatchedFile[Any]]:
    """A policy that gives all tokens the role of readers, in a file that is followed."""
    path = directory / "policy.toml"
    path.write_text(READERS)
    access = AccessControl.from_settings(SecuritySettings(security_policy=path))
    assert access is not None
    (file,) = access.files
    return path, access, file


def test_without_settings_there_is_no_access_control() -> None:
    assert AccessControl.from_settings(SecuritySettings()) is None


def test_without_a_policy_whoever_is_authenticated_may_do_all(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(new_token("spark")[1])
    access = AccessControl.from_settings(SecuritySettings(security_tokens=tmp_path / "tokens"))
    assert access is not None
    assert access.decide(SPARK, Action.LEDGER_DELETE, Resource(0))
    assert not access.decide(ANONYMOUS, Action.DISCOVERY_READ)
    assert not access.decide(LOCAL, Action.DISCOVERY_READ)


def test_a_policy_changes_under_way_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, access, file = with_policy(tmp_path)
    assert not access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))
    path.write_text(READERS.replace("reader", "writer"))
    file.refresh()
    assert access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))
    path.write_text("rubbish")
    with caplog.at_level(logging.ERROR):
        file.refresh()
        file.refresh()
    assert access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))
    assert list(access.refused_files) == ["policy"]
    assert "policy.toml" in access.refused_files[FileKind.POLICY]
    assert caplog.text.count("kept-old") == 1
    path.unlink()
    file.refresh()
    assert access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))
    path.write_text(READERS)
    file.refresh()
    assert not access.refused_files
    assert not access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))


def test_a_file_that_could_not_be_read_once_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it can be read now changes neither its time nor its size: a mode was corrected, a descriptor is free."""
    path, access, file = with_policy(tmp_path)
    path.write_text(READERS.replace("reader", "writer"))
    reads = []

    def without_a_descriptor(self: Path, **_: Any) -> str:
        reads.append(self)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr(Path, "read_text", without_a_descriptor)
        assert not file.refresh()
        assert not file.refresh()
    assert list(access.refused_files) == ["policy"]
    assert len(reads) == 2
    assert file.refresh()
    assert access.decide(SPARK, Action.LEDGER_CREATE, Resource(0))
    assert not access.refused_files


def test_a_file_that_was_read_and_is_of_no_use_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, access, file = with_policy(tmp_path)
    path.write_text("rubbish")
    assert not file.refresh()
    monkeypatch.setattr(Path, "read_text", lambda self, **_: pytest.fail(f"{self} is read again"))
    assert not file.refresh()
    assert list(access.refused_files) == ["policy"]


def test_each_file_that_can_not_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else files are looked at once a second.
    monkeypatch.setattr("bookgate.runtime.security.watched_file._LOOK_SECONDS", 0.0)
    files = {kind: tmp_path / kind for kind in FileKind}
    key = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
    good = {FileKind.POLICY: READERS, FileKind.TOKENS: new_token("a")[1], FileKind.KEYS: json.dumps({"keys": [key]})}
    for kind, content in good.items():
        files[kind].write_text(content)
    access = AccessControl.from_settings(
        SecuritySettings(
            security_policy=files[FileKind.POLICY],
            security_tokens=files[FileKind.TOKENS],
            security_jwt_keys=str(files[FileKind.KEYS]),
            security_jwt_audience="x",
            security_jwt_issuer="y",
        )
    )
    assert access is not None
    assert access.refused_files == {}
    for kind in FileKind:
        files[kind].write_text("rubbish\n")
        assert list(access.refused_files) == [kind]
        assert refused_samples(access.refused_files) == [(each, int(each is kind)) for each in FileKind]
        files[kind].write_text(good[kind])
        assert access.refused_files == {}


def test_the_trail_has_changes_and_denials_and_no_token(tmp_path: Path) -> None:
    token, line = new_token("spark")
    (tmp_path / "tokens").write_text(line)
    settings = SecuritySettings(security_tokens=tmp_path / "tokens", audit_file=tmp_path / "audit.log")
    access = AccessControl.from_settings(settings)
    assert access is not None
    try:
        principal = access.authenticate(door="grpc", peer="1.2.3.4:5", bearer=token)
        resource = Resource(0, name="ledger:7")
        access.done(principal, Action.LEDGER_READ, resource, "SUCCESS", door="grpc", peer="1.2.3.4:5")
        access.done(
            principal, Action.LEDGER_CREATE, resource, "SUCCESS", door="grpc", peer="p", request_token=b"\x01" * 16
        )
        denied = access.decide(ANONYMOUS, Action.LEDGER_READ, resource)
        access.denied(ANONYMOUS, Action.LEDGER_READ, resource, denied, door="entry", peer="p")
        with pytest.raises(NotAuthenticatedException):
            access.authenticate(door="http", peer="p", bearer=token + "x")
    finally:
        access.close()
    text = (tmp_path / "audit.log").read_text()
    assert token not in text
    rows = [json.loads(each) for each in text.splitlines()]
    assert [(row["action"], row["outcome"]) for row in rows] == [
        ("ledger.create", "SUCCESS"),
        ("ledger.read", "denied"),
        ("authenticate", "unauthenticated"),
    ]
    assert rows[0]["request_token"] == "010101010101"
    assert stat.S_IMODE(os.stat(tmp_path / "audit.log").st_mode) == 0o600
    assert access.counts["entry", "anonymous", "denied"] == 1


@pytest.mark.parametrize(("files", "names"), [(1, ["audit.log"]), (2, ["audit.log", "audit.log.1"])])
def test_the_audit_file_begins_anew(tmp_path: Path, files: int, names: list[str]) -> None:
    trail = AuditTrail()
    trail.write_to(tmp_path / "audit.log", 4096, files)
    try:
        for number in range(100):
            trail.record(
                principal=SPARK,
                peer="p",
                door="grpc",
                action=Action.LEDGER_CREATE,
                resource=f"ledger:{number}",
                outcome="x",
            )
    finally:
        trail.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert all(0 < each.stat().st_size <= 4096 for each in tmp_path.iterdir())


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "deleted"])
def test_the_audit_file_begins_anew_after_somebody_has_taken_it_away(tmp_path: Path, files: int, moved: bool) -> None:
    trail, file, archived = AuditTrail(), tmp_path / "audit.log", tmp_path / "archived"

    def record(number: int) -> None:
        resource = f"ledger:{number}"
        trail.record(
            principal=SPARK, peer="p", door="grpc", action=Action.LEDGER_CREATE, resource=resource, outcome="x"
        )

    trail.write_to(file, 4096, files)
    try:
        record(0)
        file.rename(archived)
        if not moved:
            archived.unlink()
        for number in range(1, 100):
            record(number)
    finally:
        trail.close()
    assert '"ledger:99"' in file.read_text()
    assert 0 < file.stat().st_size <= 4096
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not moved or '"ledger:0"' in archived.read_text()


def test_the_audit_file_goes_on_where_it_can_not_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a directory of somebody else; here its next name is taken."""
    now, trail, file = 1000.0, AuditTrail(), tmp_path / "audit.log"
    monkeypatch.setattr("bookgate.runtime.security.audit_trail.monotonic", lambda: now)

    def record(numbers: range) -> None:
        for number in numbers:
            resource = f"ledger:{number}"
            trail.record(
                principal=SPARK, peer="p", door="grpc", action=Action.LEDGER_CREATE, resource=resource, outcome="x"
            )

    (tmp_path / "audit.log.1").mkdir()
    trail.write_to(file, 4096, 2)
    try:
        record(range(100))
        assert [f'"ledger:{number}"' in line for number, line in enumerate(file.read_text().splitlines())] == [
            True
        ] * 100
        assert caplog.text.count("event=audit_file_not_renamed") == 1
        (tmp_path / "audit.log.1").rmdir()
        now += 60
        record(range(100, 101))
    finally:
        trail.close()
    assert len(file.read_text().splitlines()) == 1
    assert len((tmp_path / "audit.log.1").read_text().splitlines()) == 100


def record_lines(trail: AuditTrail, numbers: range) -> None:
    for number in numbers:
        trail.record(
            principal=SPARK,
            peer="p",
            door="grpc",
            action=Action.LEDGER_CREATE,
            resource=f"ledger:{number}",
            outcome="x",
        )


def numbers_in(file: Path) -> list[int]:
    return [int(json.loads(line)["resource"].removeprefix("ledger:")) for line in file.read_text().splitlines()]


def test_older_audit_files_stay_where_the_present_one_can_not_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory with the sticky bit, or where the file alone is a mount, or may only be appended to."""
    now, trail, file = 1000.0, AuditTrail(), tmp_path / "audit.log"
    monkeypatch.setattr("bookgate.runtime.security.audit_trail.monotonic", lambda: now)
    older = [tmp_path / f"audit.log.{number}" for number in (1, 2, 3)]
    for each in older:
        each.write_text(f"{each.name}\n")
    trail.write_to(file, 4096, 4)
    try:
        with monkeypatch.context() as patches:
            for name in ("rename", "replace"):
                patches.setattr(os, name, partial(_refuse_to_rename, file, getattr(os, name)))
            for minute in range(4):
                record_lines(trail, range(minute * 40, minute * 40 + 40))
                now += 60
        assert numbers_in(file) == list(range(160))
        assert [each.read_text() for each in older] == ["audit.log.1\n", "audit.log.2\n", "audit.log.3\n"]
        record_lines(trail, range(160, 161))
    finally:
        trail.close()
    assert numbers_in(file) == [160]
    assert numbers_in(older[0]) == list(range(160))
    assert [each.read_text() for each in older[1:]] == ["audit.log.1\n", "audit.log.2\n"]
    assert len(list(tmp_path.iterdir())) == 4


def _refuse_to_rename(file: Path, rename: Callable[[Any, Any], None], source: Any, target: Any) -> None:
    if Path(source) == file:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(source))
    rename(source, target)


def test_an_older_audit_file_that_can_not_be_renamed_costs_at_most_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, trail, file = 1000.0, AuditTrail(), tmp_path / "audit.log"
    monkeypatch.setattr("bookgate.runtime.security.audit_trail.monotonic", lambda: now)
    for number in (1, 2, 3):
        (tmp_path / f"audit.log.{number}").write_text(f"{number}\n")
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, partial(_refuse_to_rename, tmp_path / "audit.log.1", getattr(os, name)))
    trail.write_to(file, 4096, 4)
    try:
        for minute in range(4):
            record_lines(trail, range(minute * 40, minute * 40 + 40))
            now += 60
    finally:
        trail.close()
    assert numbers_in(file) == list(range(160))
    assert (tmp_path / "audit.log.1").read_text() == "1\n"
    assert (tmp_path / "audit.log.3").read_text() == "2\n"


def test_an_audit_file_whose_renaming_was_interrupted_becomes_an_older_one(tmp_path: Path) -> None:
    trail, file = AuditTrail(), tmp_path / "audit.log"
    (tmp_path / "audit.log.rolling").write_text("interrupted\n")
    (tmp_path / "audit.log.1").write_text("older\n")
    trail.write_to(file, 4096, 8)
    try:
        record_lines(trail, range(30))
    finally:
        trail.close()
    assert numbers_in(tmp_path / "audit.log.1") + numbers_in(file) == list(range(30))
    assert (tmp_path / "audit.log.2").read_text() == "interrupted\n"
    assert (tmp_path / "audit.log.3").read_text() == "older\n"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("files", [1, 2])
def test_the_audit_file_goes_on_where_it_was_moved_to_while_no_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    now, trail, file, archived = 1000.0, AuditTrail(), tmp_path / "audit.log", tmp_path / "archived"
    monkeypatch.setattr("bookgate.runtime.security.audit_trail.monotonic", lambda: now)
    make = os.open

    def make_nothing(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if Path(path) == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return make(path, flags, *rest, **more)

    trail.write_to(file, 4096, files)
    try:
        record_lines(trail, range(5))
        file.rename(archived)
        with monkeypatch.context() as patches:
            patches.setattr(os, "open", make_nothing)
            record_lines(trail, range(5, 100))
            now += 60
            record_lines(trail, range(100, 200))
        assert numbers_in(archived) == list(range(200))
        now += 60
        record_lines(trail, range(200, 201))
    finally:
        trail.close()
    assert numbers_in(archived) == list(range(200))
    assert numbers_in(file) == [200]


def test_the_only_audit_file_goes_on_where_it_can_not_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AppendOnly(TextIOWrapper):
        def truncate(self, size: int | None = None) -> int:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("bookgate.runtime.security.audit_trail.TextIOWrapper", AppendOnly)
    trail = AuditTrail()
    trail.write_to(tmp_path / "audit.log", 4096, 1)
    try:
        record_lines(trail, range(100))
    finally:
        trail.close()
    assert numbers_in(tmp_path / "audit.log") == list(range(100))


def test_of_what_anybody_may_provoke_there_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    access = AccessControl(Authenticators(), audit=AuditTrail(clock=lambda: now))

    def refuse(*peers: str, rule: str = "another origin") -> int:
        caplog.clear()
        for peer in peers:
            access.refused(ANONYMOUS, "log-in", "/", rule, door="http", peer=peer)
        return len(caplog.records)

    with caplog.at_level(logging.INFO, "bookgate.audit"):
        assert refuse("a", "a", "b", "a") == 2
        assert refuse("a", "b") == 0
        assert refuse("a", rule="another rule") == 1
        now = 59.9
        assert refuse("a", "b") == 0
        now = 60.0
        assert refuse("a", "b") == 2
        # Of too many kinds no more are written, and none is forgotten before its time.
        assert refuse(*map(str, range(2000))) == 998
        assert refuse("a", "b") == 0
        now = 120.0
        assert refuse("a", "b") == 2
    assert access.counts["http", "anonymous", "denied"] == 2015


def test_who_connects_anew_crowds_out_no_line(caplog: pytest.LogCaptureFixture) -> None:
    access = AccessControl(Authenticators(), audit=AuditTrail(clock=lambda: 0.0))

    def refuse(*peers: str, door: str = "grpc") -> int:
        caplog.clear()
        for peer in peers:
            access.limited(ANONYMOUS, "call", "over a rate", door=door, peer=peer)
        return len(caplog.records)

    with caplog.at_level(logging.INFO, "bookgate.audit"):
        assert refuse(*(f"ipv4:192.0.2.7:{port}" for port in range(2000))) == 1
        assert refuse("ipv6:%5B::1%5D:1", "ipv6:%5B::1%5D:2", "[::1:2]:3", "2001:db8::1", "2001:db8::2") == 4
        # Too many at one door are too many there alone.
        assert refuse(*map(str, range(2000))) == 995
        assert refuse("192.0.2.7", door="http") == 1


def test_settings_that_contradict_each_other() -> None:
    for wrong in (
        {"security_jwt_issuer": "x"},
        {"security_jwt_keys": "http://idp", "security_jwt_audience": "x", "security_jwt_issuer": "x"},
        {"security_principal_rules": ["x"]},
    ):
        with pytest.raises(ValueError, match="security_"):
            SecuritySettings(**wrong)
    for missing in ("security_jwt_issuer", "security_jwt_audience"):
        given: dict[str, Any] = {
            "security_jwt_keys": "keys.json",
            "security_jwt_issuer": "x",
            "security_jwt_audience": "x",
        }
        with pytest.raises(ValueError, match=f"security_jwt_keys needs {missing}: a token that"):
            SecuritySettings(**{key: value for key, value in given.items() if key != missing})


def test_commands_make_tokens_and_explain_policies(tmp_path: Path) -> None:
    run = CliRunner().invoke
    tokens, policy = tmp_path / "tokens", tmp_path / "policy.toml"
    token = run(app, ["token", "create", "spark", "--file", str(tokens)]).stdout.strip()
    run(app, ["token", "create", "etl", "--file", str(tokens)])
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600
    assert str(StaticTokens(tokens).principal(token)) == "token:spark"
    line = run(app, ["token", "hash", "spark"], input=token + "\n").stdout.strip()
    assert line in tokens.read_text()
    policy.write_text(READERS)
    assert run(app, ["policy", "check", str(policy)]).exit_code == 0
    asked = ["policy", "explain", "token:spark", "ledger.read", "ledger:7", "--policy", str(policy)]
    assert "allowed: binding 1 (role reader)" in run(app, asked).stdout
    denied = run(app, [*asked[:3], "ledger.delete", *asked[4:]])
    assert (denied.exit_code, denied.stdout) == (1, "denied: no binding allows it\n")
    policy.write_text("[[bindings]]\n")
    broken = run(app, ["policy", "check", str(policy), "--json"])
    assert broken.exit_code == 1
    assert len(json.loads(broken.stdout)["problems"]) == 2


def test_a_file_that_can_not_be_used_is_an_error_at_the_start(tmp_path: Path) -> None:
    for wrong in (
        {"security_policy": tmp_path / "none"},
        {"security_tokens": tmp_path / "none"},
        {"security_jwt_keys": str(tmp_path / "none"), "security_jwt_audience": "x", "security_jwt_issuer": "x"},
    ):
        with pytest.raises(IncorrectParameterException, match="none can't be read"):
            AccessControl.from_settings(SecuritySettings(**wrong))
