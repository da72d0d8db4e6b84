"""`bookgate doctor` on live clusters, well and with planted faults."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import httpx
import pytest
import trustme
from typer.testing import CliRunner

from bookgate.bookie.commands.doctor import app
from bookgate.bookie.membership.cookie import Cookie
from bookgate.bookie.replication.audits.audit_rules import HELD_BACK, HeldBack
from bookgate.bookie.server import BookieServer
from bookgate.bookie.standalone.cluster import StandaloneCluster
from bookgate.bookie.standalone.local_zookeeper import LocalZooKeeper
from bookgate.bookie.tools.doctor.diagnosis import judge
from bookgate.bookie.tools.doctor.findings import Finding, FindingLevel
from bookgate.bookie.tools.doctor.probe import look
from bookgate.gateway.server import GatewayServer
from bookgate.gateway.stores.drivers import create_factory, ensure_cluster
from bookgate.ledger.bookie_info import BOOKIE_RPC, HTTP, BookieServiceInfo, Endpoint
from bookgate.ledger.replication_store import RecordKind
from bookgate.runtime.security.static_tokens import new_token
from bookgate.thinclient.config import ClientConfig
from tests.integration.bookie.in_process import running_bookie
from tests.stores import made

TIMEOUT = 1.0


def of_the_machine(what: str) -> bool:
    """How many files a process may open, and how full its disk is, is the machine's affair."""
    return "files only" in what or what.startswith(("its disks are", "one of its disks is"))


def doctor(*arguments: object) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code, and the findings that are not fine by what they are about: as they are on a machine with room."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert answer["healthy"] == (result.exit_code == 0)
    found: dict[str, list[dict[str, str]]] = {}
    for finding in answer["findings"]:
        if finding["level"] != "ok" and not of_the_machine(finding["what"]):
            found.setdefault(finding["subject"], []).append(finding)
            assert finding["advice"]
    errors = any(finding["level"] == "error" for finding in answer["findings"])
    assert errors == (result.exit_code == 1)
    return int(any(finding["level"] == "error" for several in found.values() for finding in several)), found


async def findings_of(server: BookieServer, **config: object) -> list[Finding]:
    gateways = f"grpc://{server.addresses['gateway']}"
    seen = await look(ClientConfig.model_validate({"gateways": gateways, **config}), TIMEOUT)
    beside = [each for each in judge(seen, 1) if each.subject != "auto-recovery"]
    return [finding for finding in beside if not of_the_machine(finding.what)]


def test_a_healthy_cluster(cluster_of_processes: StandaloneCluster) -> None:
    code, found = doctor("--gateways", cluster_of_processes.gateway_uri)
    assert (code, found) == (0, {})
    whole = CliRunner().invoke(app, ["-g", cluster_of_processes.gateway_uri]).stdout
    assert "is the auditor" in whole
    assert "bookie-2" in whole
    assert "agree" in whole
    assert "bookgate/" in whole


def test_planted_faults(own_cluster: StandaloneCluster, tmp_path: Path) -> None:
    first, stopped, killed = own_cluster.processes
    killed.kill()
    stopped.terminate()
    stopped.wait()
    request = urllib.request.Request(
        f"http://{first.addresses['http']}/api/v1/bookie/state/readonly", b'{"readOnly": true}', method="PUT"
    )
    urllib.request.urlopen(request, timeout=30).close()
    file = tmp_path / "bookie.toml"
    file.write_text('data_dir = "/d"\nmetadata_uri = "sqlite:///m"\nprot = 1\n')

    arguments = ("-g", f"grpc://{first.addresses['gateway']}", "--timeout", TIMEOUT, "--file", file)
    deadline = time.monotonic() + 30
    code, found = doctor(*arguments)
    while "bookie bookie-1" not in found and time.monotonic() < deadline:
        code, found = doctor(*arguments)

    assert code == 1
    assert "read-only" in found["bookie bookie-1"][0]["what"]
    assert "not registered" in found["bookie bookie-2"][0]["what"]
    # Registered until its lease ends.
    assert any(word in found["bookie bookie-3"][0]["what"] for word in ("does not serve", "not registered"))
    assert found["cluster"][0]["what"].startswith("0 bookies take writes")
    assert "did you mean port?" in found[f"file {file}"][0]["what"]


def test_nobody_makes_copies_again(standalone_cluster: StandaloneCluster) -> None:
    code, found = doctor("-g", standalone_cluster.gateway_uri)
    assert code == 0
    [finding] = found["auto-recovery"]
    assert "there is no auditor" in finding["what"]


@pytest.mark.asyncio
async def test_auto_recovery_as_the_store_has_it(tmp_path: Path) -> None:
    store = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
    await store.initialize()
    metadata, gateway = store.replication_metadata, GatewayServer(store)
    uri = f"grpc://127.0.0.1:{await gateway.start()}"

    async def found(subject: str = "auto-recovery") -> list[Finding]:
        seen = await look(ClientConfig(gateways=uri), TIMEOUT)
        return [finding for finding in judge(seen, 1) if finding.subject == subject]

    await metadata.set_enabled(False)
    assert [("disabled" in each.what, "no auditor" in each.what) for each in await found()] == [
        (True, False),
        (False, True),
    ]
    await metadata.set_enabled(True)
    await metadata.stand_for_auditor("b9", lambda state: None)
    [well] = await found()
    assert (well.level, well.what) == (FindingLevel.OK, "enabled, b9 is the auditor, 0 ledgers are marked for repair")

    now_ms = int(time.time() * 1000)
    await metadata.mark(7, ["b1"], now_ms - 2 * 3_600_000)
    await metadata.mark(8, ["b1"], now_ms - 9 * 3_600_000)
    await metadata.write_record(RecordKind.UNRECOVERABLE_LEDGER, "8", b"{}", None)
    [gone, old] = await found()
    assert (gone.level, old.level) == (FindingLevel.ERROR, FindingLevel.WARNING)
    assert gone.what.startswith("1 ledgers have entries of which no copy is left")
    assert old.what.startswith("a ledger has lacked copies for 2:0")

    for name in ("b1", "b2"):
        cookie = Cookie(name, "/j", "1\t/l", await store.registration_manager.cluster_instance_id())
        await store.registration_manager.write_cookie(name, cookie.encode(), None)
    await metadata.missed_since("b1", now_ms - 90_000)
    assert len(await found()) == 2, "that it holds back the auditor has to say"
    await metadata.write_record(RecordKind.PROGRESS, HELD_BACK, HeldBack(("b1", "b2"), 3).encode(), None)
    [storm, *_] = await found()
    assert (storm.level, "trigger" in storm.advice) == (FindingLevel.ERROR, True)
    assert storm.what.startswith("2 of 3 bookies are missed at once")
    [missed] = await found("bookie b1")
    assert "not registered, missed for 0:01:3" in missed.what
    assert "leave its ledgers to auto-recovery" in missed.advice
    await gateway.stop(0)
    await store.close()


def test_nothing_but_a_wrong_gateway() -> None:
    code, found = doctor("-g", "grpc://127.0.0.1:1", "--timeout", TIMEOUT)
    assert code == 1
    assert set(found) == {"gateway 127.0.0.1:1", "cluster"}
    assert "connection refused" in found["gateway 127.0.0.1:1"][0]["what"]


def test_what_is_no_gateway_uri_is_refused() -> None:
    for uri in ("zk://127.0.0.1:1/ledgers", ""):
        result = CliRunner().invoke(app, ["--gateways", uri])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")


@pytest.mark.asyncio
async def test_registrations_that_lead_nowhere(tmp_path: Path) -> None:
    def registered(name: str, port: int, http_port: int) -> BookieServiceInfo:
        endpoints = (Endpoint("b", "127.0.0.1", port, BOOKIE_RPC), Endpoint("h", "127.0.0.1", http_port, HTTP))
        return BookieServiceInfo(name, endpoints)

    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    silent_port = silent.sockets[0].getsockname()[1]
    async with running_bookie(tmp_path) as server:
        factory = create_factory(made(f"sqlite://{tmp_path}/metadata.db"))
        await factory.initialize()
        registration = factory.registration_manager
        entry = int(str(server.addresses["bookie"]).rpartition(":")[2])
        http = int(str(server.addresses["http"]).rpartition(":")[2])
        await registration.register_bookie(registered("closed", 1, 1), read_only=False)
        await registration.register_bookie(registered("silent", silent_port, silent_port), read_only=False)
        await registration.register_bookie(registered("speaks-http", http, http), read_only=False)
        await registration.register_bookie(registered("no-http", entry, entry), read_only=False)
        for name in ("closed", "silent", "speaks-http"):
            cookie = Cookie(name, "/j", "1\t/l", await registration.cluster_instance_id())
            await registration.write_cookie(name, cookie.encode(), None)
        foreign = Cookie("no-http", "/j", "1\t/l", "another-cluster")
        await registration.write_cookie("no-http", foreign.encode(), None)
        bad = [each for each in await findings_of(server) if each.level is not FindingLevel.OK]
        await factory.close()
    silent.close()

    by_subject = {
        subject: [each.what for each in bad if each.subject == subject] for subject in {e.subject for e in bad}
    }
    bookies = {"bookie closed", "bookie silent", "bookie speaks-http", "bookie no-http"}
    assert set(by_subject) == {*bookies, "addresses"}
    assert all("the same entry port" in what for what in by_subject["addresses"])
    for name in ("closed", "silent", "speaks-http"):
        assert len(by_subject[f"bookie {name}"]) == 1
        assert "does not serve" in by_subject[f"bookie {name}"][0]
    assert "another-cluster" in by_subject["bookie no-http"][0]
    assert "HTTP admin is out of reach" in by_subject["bookie no-http"][1]


@pytest.mark.asyncio
async def test_tls_where_it_is_announced(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "other.pem")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    async with running_bookie(tmp_path, **files) as server:
        good = await findings_of(server, bookie_tls_ca=tmp_path / "ca.pem")
        blind = await findings_of(server)
        wrong = await findings_of(server, bookie_tls_ca=tmp_path / "other.pem")
    assert {each.level for each in good} == {FindingLevel.OK}
    assert [(each.level, each.what) for each in blind if each.level is not FindingLevel.OK] == [
        (FindingLevel.WARNING, "it serves TLS; its certificate could not be checked")
    ]
    [failed] = [each for each in wrong if each.level is not FindingLevel.OK]
    assert failed.level is FindingLevel.ERROR
    assert "certificate is not accepted" in failed.what


@pytest.mark.asyncio
async def test_certificates_that_end_soon(tmp_path: Path) -> None:
    authority, now = trustme.CA(), datetime.now(UTC)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    files = {"tls_cert": certificate, "tls_key": key}

    def until(days: float) -> None:
        issued = authority.issue_cert(
            "127.0.0.1", not_before=now - timedelta(days=50), not_after=now + timedelta(days=days, hours=1)
        )
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)

    async def found(server: BookieServer) -> list[tuple[str, str]]:
        config = ClientConfig(gateways=f"grpcs://{server.addresses['gateway']}", tls_ca=tmp_path / "ca.pem")
        seen = await look(config, TIMEOUT)
        assert [len(view.certificates) for view in seen.bookies] == [2], "at its entry port and over HTTP"
        bad = [each for each in judge(seen, 1) if each.level is FindingLevel.WARNING]
        return [(each.subject.split()[0], each.what[:30]) for each in bad if "certificate" in each.what]

    until(5)
    gateway = {name: str(path) for name, path in files.items()}
    async with running_bookie(tmp_path, **files, http_tls=True, gateway=gateway) as server:
        ends = "its certificate ends in 5 days"
        assert await found(server) == [("gateway", ends), ("bookie", ends)]
        until(40)
        assert await found(server) == []


@pytest.mark.asyncio
async def test_a_bookie_that_authenticates_and_files_that_it_can_not_use(tmp_path: Path) -> None:
    tokens, policy = tmp_path / "tokens", tmp_path / "policy.toml"
    (token, line), (readers, readers_line) = new_token("operator"), new_token("reader")
    tokens.write_text(f"{line}\n{readers_line}\n")
    rules = "".join(
        f'[[bindings]]\nprincipals = ["token:{each}"]\nrole = "{each}"\n' for each in ("operator", "reader")
    )
    policy.write_text(rules)
    async with running_bookie(tmp_path, security_tokens=tokens, security_policy=policy) as server:
        provider = {"auth_provider": "bookgate-token"}

        async def found(shown: str) -> list[str]:
            findings = await findings_of(server, token=shown, **provider)
            return [each.what for each in findings if each.level is not FindingLevel.OK]

        assert await found(token) == []
        gateways = f"grpc://{server.addresses['gateway']}"
        [seen] = (await look(ClientConfig.model_validate({"gateways": gateways, "token": token}), TIMEOUT)).bookies
        assert seen.http is not None
        assert 0 < (seen.http.fullest_disk or 0) <= 1
        assert "its HTTP admin does not tell this caller its state, settings and metrics" in await found(readers)
        for unknown in ({}, {"token": "planted-unknown", **provider}):
            [gateway, cluster] = await findings_of(server, **unknown)
            assert "it does not tell this caller about the cluster: UNAUTHENTICATED" in gateway.what
            assert "no gateway tells this caller about it" in cluster.what

        policy.write_text("[[bindings]]\n")
        tokens.write_text("rubbish\n")
        async with asyncio.timeout(30):
            while await found(token) != [
                "it can't use its security_policy and security_tokens as they are now, and goes by what it read before"
            ]:
                pass

        async def of_the_console() -> list[str]:
            problems = (await asked.get("/api/v1/console/cluster")).json()["problems"]
            return [each["text"] for each in problems if each["subject"] == "security"]

        http = f"http://{server.addresses['http']}"
        async with httpx.AsyncClient(base_url=http, headers={"Authorization": f"Bearer {token}"}) as asked:
            # The gateway looks at the files by itself, a moment before or after the bookie's doors.
            async with asyncio.timeout(30):
                while len(problems := await of_the_console()) < 2:
                    pass
            [of_tokens, of_policy] = problems
            assert "tokens: line 1" in of_tokens
            assert "policy.toml: binding 1" in of_policy
            expected = [
                rf'^{name}\{{file="{file}"\}} {value}(\.0)?$'
                for name in ("bookie_ACCESS_FILE_REFUSED", "bookgate_gateway_access_file_refused")
                for file, value in (("policy", "1"), ("tokens", "1"), ("keys", "0"))
            ]

            async def are_shown() -> bool:
                metrics = (await asked.get("/metrics")).text
                return all(re.search(line, metrics, re.M) for line in expected)

            async with asyncio.timeout(30):
                # Here, too, one looks a moment before the other.
                while not await are_shown():
                    pass
            policy.write_text(rules)
            tokens.write_text(f"{line}\n")
            async with asyncio.timeout(30):
                while await found(token) or await of_the_console():
                    pass


@pytest.mark.asyncio
async def test_a_gateway_whose_store_is_gone(own_zookeeper: LocalZooKeeper) -> None:
    uri = f"zk+hierarchical://{own_zookeeper.address}/ledgers"
    await ensure_cluster(uri)
    factory = create_factory(uri)
    await factory.initialize()
    gateway = GatewayServer(factory, "127.0.0.1", 0)
    port = await gateway.start()
    own_zookeeper.stop()
    seen = await look(ClientConfig(gateways=f"grpc://127.0.0.1:{port}"), TIMEOUT)
    await gateway.stop(0)
    await factory.close()
    [finding, nothing] = judge(seen)
    assert (finding.level, nothing.subject) == (FindingLevel.ERROR, "cluster")
    assert "metadata store does not" in finding.what


@pytest.mark.asyncio
async def test_what_listens_and_says_nothing_takes_no_longer_than_its_time() -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with asyncio.timeout(20 * TIMEOUT):
        seen = await look(ClientConfig(gateways=f"grpc://127.0.0.1:{port}"), TIMEOUT)
    silent.close()
    assert "says nothing" in str(seen.gateways[0].error)


@pytest.mark.asyncio
async def test_what_serves_something_else_is_said_to() -> None:
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    seen = await look(ClientConfig(gateways=f"grpc://127.0.0.1:{port}"), TIMEOUT)
    await other.stop(0)
    assert "does not speak as a gateway" in str(seen.gateways[0].error)
    assert judge(seen)[0].level is FindingLevel.ERROR
