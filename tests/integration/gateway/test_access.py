"""Every RPC of a gateway with security: who may call it, what a denied call changes, what is shown of ledgers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bookgate.gateway.services.access import _action_of
from bookgate.ledger.id_set import decode_ids
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.password_check import PasswordCheck
from bookgate.protos.bookkeeper.common.v1.status_pb2 import StatusCode
from bookgate.protos.bookkeeper.gateway.v1 import ledger_metadata_service_pb2 as lm
from bookgate.protos.bookkeeper.gateway.v1 import registration_service_pb2 as rs
from bookgate.protos.bookkeeper.gateway.v1 import replication_service_pb2 as rp
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as sd
from bookgate.runtime.security import access_control
from bookgate.runtime.security.actions import RPC_ACTIONS
from tests.access_policy import look_at_files
from tests.integration.gateway.guarded import (
    POLICY,
    Guarded,
    call,
    guarded_gateway,
    methods,
    outcome,
    path_of,
)
from tests.tokens import signed

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = {method.name: method for method in methods()}
PASSWORD = b"planted-password"
METADATA = LedgerMetadata.new(["b-1"], 1, 1, password=PASSWORD)
SHUT = ("UNAUTHENTICATED", "PERMISSION_DENIED")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_gateway(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def channel(gateway: Guarded) -> AsyncIterator[grpc.aio.Channel]:
    async with gateway.channel() as channel:
        yield channel


def on(ledger: int = 900, **fields: Any) -> lm.LedgerMetadataRequest:
    return lm.LedgerMetadataRequest(ledger_id=ledger, **fields)


REQUESTS: dict[str, Callable[[], Message]] = {
    "Create": lambda: lm.LedgerMetadataRequest(metadata=to_format(METADATA)),
    "BatchCreate": lambda: lm.BatchCreateRequest(requests=[{"metadata": to_format(METADATA)}]),
    "Read": on,
    "BatchRead": lambda: lm.BatchReadRequest(ledger_ids=[900]),
    "Write": lambda: on(metadata=to_format(METADATA), expected_version=0),
    "Remove": on,
    "Watch": on,
    "Iterate": lambda: lm.GetLedgerRangesRequest(),
    "Register": lambda: rs.RegisterRequest(
        sequence=1, bookie=sd.Bookie(bookie_id="bookie-1"), lease=rs.Lease(lease_id="lease", epoch=1)
    ),
    "ReadCookie": lambda: rs.ReadCookieRequest(bookie_id="bookie-1"),
    "WriteCookie": lambda: rs.WriteCookieRequest(bookie_id="bookie-1", cookie=b"c"),
    "RemoveCookie": lambda: rs.RemoveCookieRequest(bookie_id="bookie-1"),
    "Attend": lambda: rp.AttendRequest(sequence=1, session_id="s" * 16),
    "ChangeSettings": lambda: rp.ChangeSettingsRequest(enabled=True),
    "WriteRecord": lambda: rp.WriteRecordRequest(kind="draining", key="b"),
    "RemoveRecord": lambda: rp.RemoveRecordRequest(kind="draining", key="b", expected_version=-1),
    "WatchLedgers": lambda: rp.WatchLedgersRequest(sequence=1),
}


def request_of(name: str) -> Message:
    return REQUESTS[name]() if name in REQUESTS else GetMessageClass(METHODS[name].input_type)()


MAY: dict[str, set[str]] = {
    "reader": {"Read", "BatchRead", "Iterate", "Watch"},
    "bookie-1": {
        *("Read", "BatchRead", "Iterate", "Watch", "Register", "ReadCookie", "WriteCookie", "RemoveCookie", "Attend"),
        *("Mark", "ListMarks", "DeleteMark", "Claim", "ListClaims", "WriteLedger", "GetSettings", "ListRecords"),
        *("WatchLedgers", "Write"),
    },
    # Whoever may recover ledgers learns of a write that this one does not exist; more is in a test of its own.
    "recoverer": {"Read", "BatchRead", "Write"},
    "operator": {
        *("Read", "BatchRead", "Iterate", "Watch", "ReadCookie", "WriteCookie", "RemoveCookie", "Attend", "Mark"),
        *("ListMarks", "DeleteMark", "Claim", "ListClaims", "WriteLedger", "GetSettings", "ChangeSettings"),
        *("ListRecords", "WriteRecord", "RemoveRecord", "WatchLedgers", "Write"),
    },
    "stranger": set(),
    "elsewhere": set(),
}
DISCOVERY = {"ListBookies", "WatchBookies", "GetBookieServiceInfo", "GetClusterInfo"}
for _name in ("reader", "bookie-1", "operator", "elsewhere"):
    MAY[_name] |= {*DISCOVERY, "ListScopes"}


async def test_every_rpc_has_an_action() -> None:
    assert {path_of(method) for method in methods()} == {name for name in RPC_ACTIONS if "bookkeeper" in name}


@pytest.mark.parametrize("name", METHODS)
async def test_credentials_are_demanded(name: str, gateway: Guarded, channel: grpc.aio.Channel) -> None:
    method, request = METHODS[name], request_of(name)
    for wrong in (
        (),
        (("authorization", "Bearer nonsense"),),
        (("authorization", "Basic " + gateway.token("admin")),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer " + signed(exp=int(time.time()) - 60)),),
        (("authorization", "Bearer " + signed(aud="another")),),
        (("authorization", "Bearer " + signed(iss="another")),),
        (("authorization", "Bearer " + signed(nbf=int(time.time()) + 60)),),
    ):
        assert await outcome(channel, method, request, wrong) == "UNAUTHENTICATED"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("who", MAY)
async def test_roles(name: str, who: str, gateway: Guarded, channel: grpc.aio.Channel) -> None:
    before = await gateway.factory.revision()
    found = await outcome(channel, METHODS[name], request_of(name), gateway.bearer(who))
    if name in MAY[who]:
        assert found not in SHUT
    else:
        assert found == "PERMISSION_DENIED"
        assert await gateway.factory.revision() == before, "a denied call changes nothing"


@pytest.mark.parametrize("name", METHODS)
async def test_an_administrator_may_do_all(name: str, gateway: Guarded, channel: grpc.aio.Channel) -> None:
    for bearer in (gateway.bearer("admin"), (("authorization", f"bearer {signed()}"),)):
        assert await outcome(channel, METHODS[name], request_of(name), bearer) not in SHUT


async def test_health_is_everybodys_and_reflection_is_not(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2

    health: Any = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    method = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].methods_by_name["ServerReflectionInfo"]
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    assert await outcome(channel, method, asked) == "UNAUTHENTICATED"
    answer = await call(channel, method, asked, gateway.bearer("reader"))
    assert answer.list_services_response.service


async def created(gateway: Guarded, channel: grpc.aio.Channel, who: str, **custom: bytes) -> lm.LedgerMetadataResponse:
    request = lm.LedgerMetadataRequest(metadata=to_format(METADATA))
    for key, value in custom.items():
        request.metadata.customMetadata.add(key=key.replace("_", "."), value=value)
    response: lm.LedgerMetadataResponse = await call(channel, METHODS["Create"], request, gateway.bearer(who))
    return response


async def test_a_ledger_belongs_to_who_created_it(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    made = await created(gateway, channel, "team-a")
    number = made.ledger_id
    assert from_format(made.metadata).custom_metadata[OWNER_KEY] == b"token:team-a"
    for name, request in (
        ("Read", on(number)),
        ("Write", on(number, metadata=to_format(METADATA), expected_version=0)),
        ("Remove", on(number)),
        ("Watch", on(number)),
        ("BatchRead", lm.BatchReadRequest(ledger_ids=[number])),
    ):
        assert await outcome(channel, METHODS[name], request, gateway.bearer("team-b")) == "PERMISSION_DENIED", name
    assert (await gateway.factory.ledger_manager.read(LedgerId.unscoped(number))).version == 0
    for name in ("Read", "Watch", "BatchRead"):
        request = lm.BatchReadRequest(ledger_ids=[number]) if name == "BatchRead" else on(number)
        assert await outcome(channel, METHODS[name], request, gateway.bearer("team-a")) == "SUCCESS", name
    written = on(number, metadata=made.metadata, expected_version=0)
    assert await outcome(channel, METHODS["Write"], written, gateway.bearer("team-a")) == "SUCCESS"
    assert await outcome(channel, METHODS["Remove"], on(number), gateway.bearer("team-a")) == "SUCCESS"
    assert await outcome(channel, METHODS["Read"], on(number), gateway.bearer("team-a")) == "LEDGER_NOT_FOUND"


@pytest.mark.parametrize("version", [None, 0, 1])
async def test_a_removal_is_of_the_ledger_whose_owner_was_looked_at(
    version: int | None, gateway: Guarded, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner's ledger takes its place meanwhile, at a version that is not the one looked at."""
    ledger_id, manager = LedgerId.unscoped(77), gateway.factory.ledger_manager
    of_a, of_b = (replace(METADATA, custom_metadata={OWNER_KEY: each}) for each in (b"token:team-a", b"token:team-b"))
    await manager.create(ledger_id, of_a)
    await manager.write(ledger_id, of_a, 0)
    read = manager.read

    async def then_it_is_anothers(looked_at: LedgerId) -> LedgerRecord:
        record = await read(looked_at)
        monkeypatch.setattr(manager, "read", read)
        await manager.remove(looked_at)
        await manager.create(looked_at, of_b)
        return record

    monkeypatch.setattr(manager, "read", then_it_is_anothers)
    removal = on(77) if version is None else on(77, expected_version=version)
    assert await outcome(channel, METHODS["Remove"], removal, gateway.bearer("team-a")) == "PERMISSION_DENIED"
    assert (await manager.read(ledger_id)).metadata.custom_metadata[OWNER_KEY] == b"token:team-b"
    await manager.remove(ledger_id)


async def test_a_removal_of_another_version_is_a_conflict(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    number = (await created(gateway, channel, "team-a")).ledger_id
    remove = METHODS["Remove"]
    assert await outcome(channel, remove, on(number, expected_version=1), gateway.bearer("team-a")) == "BAD_VERSION"
    denied = on(number, expected_version=1)
    assert await outcome(channel, remove, denied, gateway.bearer("team-b")) == "PERMISSION_DENIED"
    assert await outcome(channel, remove, on(number, expected_version=0), gateway.bearer("team-a")) == "SUCCESS"


async def test_nobody_names_another_owner(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    for custom in ({"bookgate_owner": b"token:team-b"}, {"bookgate_secret": b"x"}):
        assert (await created(gateway, channel, "team-a", **custom)).code == StatusCode.BAD_REQUEST
    made = await created(gateway, channel, "team-a", bookgate_writer=b"w", application=b"x")
    assert made.code == StatusCode.SUCCESS
    for change in ({OWNER_KEY: b"token:team-b"}, {}, {OWNER_KEY: b"token:team-a", "bookgate.more": b"x"}):
        request = on(made.ledger_id, metadata=to_format(METADATA), expected_version=0)
        for key, value in change.items():
            request.metadata.customMetadata.add(key=key, value=value)
        for who in ("team-a", "admin"):
            assert await outcome(channel, METHODS["Write"], request, gateway.bearer(who)) == "BAD_REQUEST"


async def test_listings_show_what_may_be_read(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    mine = {(await created(gateway, channel, "team-a")).ledger_id for _ in range(3)}
    await created(gateway, channel, "team-b")
    everything = {i async for run in gateway.factory.ledger_manager.ledger_ranges(0) for i in run}

    async def listed(who: str, *, metadata: bool, columns: bool) -> tuple[set[int], lm.GetLedgerRangesResponse]:
        request = lm.GetLedgerRangesRequest(include_metadata=metadata, columns=columns)
        answer = await call(channel, METHODS["Iterate"], request, gateway.bearer(who))
        assert answer.end
        # The reader gets no passwords, and columns carry none that are withheld.
        assert answer.HasField("columns") == (metadata and columns and who != "reader")
        assert len(answer.ledgers) + len(answer.columns.ledger_ids) == (answer.count if metadata else 0)
        assert who != "reader" or PASSWORD not in answer.SerializeToString()
        return set(decode_ids(answer.serialized_ranges)), answer

    for metadata, columns in product((False, True), repeat=2):
        ids, answer = await listed("team-a", metadata=metadata, columns=columns)
        assert mine <= ids < everything
        assert not metadata or {*answer.columns.ledger_ids, *(each.ledger_id for each in answer.ledgers)} == ids
        assert not answer.HasField("left_out")
        assert (await listed("reader", metadata=metadata, columns=columns))[0] == everything
        ids, answer = await listed("admin", metadata=metadata, columns=columns)
        assert ids == everything
        assert answer.left_out == 0


async def test_scopes_show_where_something_may_be_listed(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    for scope in (7, 8, -1):
        await gateway.factory.ledger_manager.create(LedgerId(scope, 1), METADATA)

    async def scopes(who: str, start_after: int = 0) -> tuple[list[int], int]:
        request = lm.ListScopesRequest(start_after=start_after)
        answer = await call(channel, METHODS["ListScopes"], request, gateway.bearer(who))
        assert answer.end
        return list(answer.scope_ids), answer.last_scope_id

    assert await scopes("admin") == await scopes("reader") == ([7, 8, -1], -1)
    assert await scopes("elsewhere") == ([7], -1), "that of a binding"
    assert await scopes("elsewhere", 7) == ([], -1)
    assert await outcome(channel, METHODS["ListScopes"], lm.ListScopesRequest(), gateway.bearer("stranger")) in SHUT


async def test_passwords_are_withheld(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    number = (await created(gateway, channel, "team-a")).ledger_id
    requests = {
        "Read": on(number),
        "Watch": on(number),
        "BatchRead": lm.BatchReadRequest(ledger_ids=[number]),
        "Iterate": lm.GetLedgerRangesRequest(include_metadata=True, start_after=number - 1),
    }
    salts = set()
    for name, request in requests.items():
        answer = await call(channel, METHODS[name], request, gateway.bearer("reader"))
        assert PASSWORD not in answer.SerializeToString(), name
        ledger = answer.ledgers[0] if name == "Iterate" else answer
        check = PasswordCheck(ledger.password_check.salt, ledger.password_check.digest)
        assert len(check.salt) == 16
        assert check.matches(PASSWORD)
        assert not check.matches(b"another")
        salts.add(check.salt)
        owners = await call(channel, METHODS[name], request, gateway.bearer("team-a"))
        assert PASSWORD in owners.SerializeToString(), name
    batched = lm.BatchReadRequest(ledger_ids=[number], batched_answers=True)
    answer = await call(channel, METHODS["BatchRead"], batched, gateway.bearer("reader"))
    assert PASSWORD not in answer.SerializeToString()
    assert answer.batch[0].HasField("password_check")
    assert len(salts) == 1, "an answer may be cached"


async def test_who_has_not_the_password_does_not_change_it(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    number = (await created(gateway, channel, "team-a")).ledger_id
    seen = await call(channel, METHODS["Read"], on(number), gateway.bearer("recoverer"))
    recovering = to_format(from_format(seen.metadata).begin_recovery())
    for who, closing in (("recoverer", False), ("recoverer", True)):
        metadata = to_format(from_format(recovering).close(-1, 0)) if closing else recovering
        request = on(number, metadata=metadata, expected_version=int(closing), password_withheld=True)
        answer = await call(channel, METHODS["Write"], request, gateway.bearer(who))
        assert answer.code == StatusCode.SUCCESS
        assert PASSWORD not in answer.SerializeToString()
    stored = (await gateway.factory.ledger_manager.read(LedgerId.unscoped(number))).metadata
    assert (stored.password, stored.is_closed) == (PASSWORD, True)


async def test_recovery_is_another_action_than_writing(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    made = await created(gateway, channel, "team-a")
    closed = to_format(from_format(made.metadata).close(-1, 0))
    request = on(made.ledger_id, metadata=closed, expected_version=0)
    assert await outcome(channel, METHODS["Write"], request, gateway.bearer("recoverer")) == "PERMISSION_DENIED"


async def test_a_bookie_id_is_its_principals(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    def register(bookie: str, lease: str, epoch: int) -> rs.RegisterRequest:
        return rs.RegisterRequest(
            sequence=1, bookie=sd.Bookie(bookie_id=bookie), lease=rs.Lease(lease_id=lease, epoch=epoch)
        )

    async def registered(who: str, request: rs.RegisterRequest) -> str:
        answer = await call(channel, METHODS["Register"], request, gateway.bearer(who))
        name: str = rs.RegistrationState.Name(answer.state) if answer.state else StatusCode.Name(answer.code)
        return name

    assert await registered("bookie-2", register("bookie-2", "stolen", 1)) == "REGISTRATION_STATE_REGISTERED"
    assert await registered("bookie-1", register("bookie-2", "stolen", 2)) == "PERMISSION_DENIED"
    # An administrator may register any bookie; a lease that he has overheard is of no use to him.
    assert await registered("admin", register("bookie-2", "stolen", 2)) == "REGISTRATION_STATE_HELD_BY_ANOTHER"
    assert await registered("bookie-2", register("bookie-2", "stolen", 3)) == "REGISTRATION_STATE_REGISTERED"
    info = await gateway.factory.service_discovery.bookie_service_info("bookie-2")
    assert "bookgate.principal" not in info.info.properties, "discovery tells it nobody"
    cookie = rs.WriteCookieRequest(bookie_id="bookie-2", cookie=b"c")
    assert await outcome(channel, METHODS["WriteCookie"], cookie, gateway.bearer("bookie-1")) == "PERMISSION_DENIED"
    assert await outcome(channel, METHODS["WriteCookie"], cookie, gateway.bearer("bookie-2")) == "SUCCESS"


async def test_a_session_is_its_principals(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    attend = rp.AttendRequest(sequence=1, session_id="bookie-1-session")
    assert await outcome(channel, METHODS["Attend"], attend, gateway.bearer("bookie-1")) == "SUCCESS"
    claim = rp.ClaimRequest(session_id="bookie-1-session", number=1, try_lock=rp.TryLock(ledger_id=3))
    assert await outcome(channel, METHODS["Claim"], claim, gateway.bearer("bookie-2")) == "SESSION_UNKNOWN"
    assert await outcome(channel, METHODS["Attend"], attend, gateway.bearer("bookie-2")) == "SESSION_UNKNOWN"
    assert await outcome(channel, METHODS["Claim"], claim, gateway.bearer("bookie-1")) == "SUCCESS"


async def test_an_auditor_writes_when_its_checks_ended(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    ended = rp.ChangeSettingsRequest(check_ended=rp.CheckEnded(check="auditorctime", ctime_ms=1))
    assert await outcome(channel, METHODS["ChangeSettings"], ended, gateway.bearer("bookie-1")) not in SHUT
    missed = rp.WriteRecordRequest(kind="missed", key="b")
    assert await outcome(channel, METHODS["WriteRecord"], missed, gateway.bearer("bookie-1")) not in SHUT
    assert _action_of(RPC_ACTIONS[path_of(METHODS["WriteRecord"])], missed) == "replication.work"  # type: ignore[arg-type]


async def test_a_replayed_creation_is_answered_to_its_principal_only(
    gateway: Guarded, channel: grpc.aio.Channel
) -> None:
    request = lm.LedgerMetadataRequest(metadata=to_format(METADATA), request_token=b"token-of-a-request")
    first = await call(channel, METHODS["Create"], request, gateway.bearer("team-a"))
    again = await call(channel, METHODS["Create"], request, gateway.bearer("team-a"))
    other = await call(channel, METHODS["Create"], request, gateway.bearer("team-b"))
    assert first.ledger_id == again.ledger_id
    assert other.ledger_id != first.ledger_id


async def test_the_trail_has_it_all_and_no_secret(gateway: Guarded, channel: grpc.aio.Channel) -> None:
    made = await created(gateway, channel, "team-a")
    await outcome(channel, METHODS["Remove"], on(made.ledger_id), gateway.bearer("team-b"))
    rows = [row for row in gateway.audit() if row["resource"] == f"ledger:{made.ledger_id}"]
    assert [(row["principal"], row["action"], row["outcome"]) for row in rows] == [
        ("token:team-a", "ledger.create", "SUCCESS"),
        ("token:team-b", "ledger.delete", "denied"),
    ]
    assert rows[0]["peer"].startswith("ipv4:127.0.0.1:")
    text = gateway.audit_file.read_text()
    assert PASSWORD.decode() not in text
    assert not any(token in text for token, _ in gateway.tokens.values())


async def test_what_was_let_in_is_asked_again_when_tokens_or_policy_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded_gateway(tmp_path) as gateway, gateway.channel() as channel:

        async def reading(who: str) -> str:
            return [await outcome(channel, METHODS["Read"], on(), gateway.bearer(who)) for _ in range(2)][-1]

        assert {await reading(who) for who in ("reader", "bookie-1", "admin")} == {"LEDGER_NOT_FOUND"}
        lines = gateway.token_file.read_text().splitlines()
        gateway.token_file.write_text("\n".join(line for line in lines if not line.startswith("bookie-1:")))
        look_at_files(gateway.access)
        assert await reading("bookie-1") == "UNAUTHENTICATED"
        assert await reading("reader") == "LEDGER_NOT_FOUND"
        gateway.policy_file.write_text('[[bindings]]\nprincipals = ["token:admin"]\nrole = "admin"\n')
        # A second later, which nobody looks at but these calls.
        for file in gateway.access.files:
            file.next_look = 0.0
        monkeypatch.setattr(access_control, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 2))
        assert await reading("reader") == "PERMISSION_DENIED"
        assert await reading("admin") == "LEDGER_NOT_FOUND"
        assert gateway.access.counts["grpc", "token", "allowed"] == 10


async def test_a_rate_of_calls_is_asked_for_each(tmp_path: Path) -> None:
    slow = '[[limits]]\nprincipals = ["token:reader"]\ncalls_per_second = 0.001\n'
    async with guarded_gateway(tmp_path, POLICY + slow) as gateway, gateway.channel() as channel:
        found = [await outcome(channel, METHODS["Read"], on(), gateway.bearer("reader")) for _ in range(3)]
        assert found == ["LEDGER_NOT_FOUND", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]


async def test_a_flood_of_refused_calls_is_refused_late_and_others_are_answered_meanwhile(tmp_path: Path) -> None:
    slow = '[[limits]]\nprincipals = ["token:reader"]\ncalls_per_second = 0.001\n'
    async with guarded_gateway(tmp_path, POLICY + slow) as gateway, gateway.channel() as channel:

        async def flood(name: str) -> set[str]:
            bearer = gateway.bearer(name) if name == "reader" else (("authorization", f"Bearer {name}"),)
            calls = (outcome(channel, METHODS["Read"], on(), bearer) for _ in range(180))
            return set(await asyncio.gather(*calls))

        began = time.monotonic()
        floods = [asyncio.ensure_future(flood(name)) for name in ("reader", "wrong")]
        assert await outcome(channel, METHODS["Read"], on(), gateway.bearer("admin")) == "LEDGER_NOT_FOUND"
        assert not any(each.done() for each in floods)
        assert await asyncio.gather(*floods) == [{"LEDGER_NOT_FOUND", "RESOURCE_EXHAUSTED"}, {"UNAUTHENTICATED"}]
        assert time.monotonic() - began > 0.5, "none was held back"


async def test_scopes_looked_at_are_paid_for(tmp_path: Path) -> None:
    """Those that are left out as well."""
    slow = '[[limits]]\nprincipals = ["token:elsewhere"]\nlisted_ids_per_second = 0.01\n'
    request = lm.ListScopesRequest()
    async with guarded_gateway(tmp_path, POLICY + slow) as gateway, gateway.channel() as channel:
        assert await outcome(channel, METHODS["ListScopes"], request, gateway.bearer("elsewhere")) == "SUCCESS"
        for scope in range(10, 13):
            await gateway.factory.ledger_manager.create(LedgerId(scope, 1), METADATA)
        asked = [await outcome(channel, METHODS["ListScopes"], request, gateway.bearer("elsewhere")) for _ in range(2)]
        assert asked == ["SUCCESS", "RESOURCE_EXHAUSTED"]
        assert await outcome(channel, METHODS["ListScopes"], request, gateway.bearer("reader")) == "SUCCESS"
