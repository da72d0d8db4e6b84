"""The entry port with a policy: every operation by everybody who might ask, owners, rates, a policy that changes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bookgate.bookie.config.bookie import load_config
from bookgate.bookie.protocol.ledger_owners import LedgerOwners
from bookgate.bookie.server import BookieServer
from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.stores.drivers import create_factory
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import OPERATIONS, Request, Status
from bookgate.ledger.wire.v3 import decode_request
from tests.access_policy import NAMES, POLICY, policy_settings
from tests.integration.bookie.entry_client import (
    KEY,
    BinaryEntryClient,
    EntryClient,
    add,
    fence,
    lac_packet,
    packet,
    read,
)
from tests.integration.bookie.in_process import entry_address, running_bookie
from tests.tokens import signed, token_of

pytestmark = pytest.mark.asyncio

LEDGER = 5
SCOPED = LedgerId(7, 5).number
"""The same id in a scope: another ledger, of another owner."""
READER = {"sub": "reader"}
_txn_ids = itertools.count(1_000_000)


async def create_owned(config_uri: str, owners: Mapping[int, str]) -> None:
    factory = create_factory(config_uri, GatewayConfig.load(None, {"metadata_uri": config_uri}))
    await factory.initialize()
    for number, owner in owners.items():
        metadata = replace(LedgerMetadata.new(["bookie"], 1, 1), custom_metadata={OWNER_KEY: owner.encode()})
        await factory.ledger_manager.create(LedgerId.of_number(number), metadata)
    await factory.close()


@asynccontextmanager
async def guarded(root: Path, policy: str = POLICY) -> AsyncIterator[BookieServer]:
    async with running_bookie(root, **policy_settings(root, policy)) as server:
        uri = f"sqlite://{root}/metadata.db"
        await create_owned(uri, {LEDGER: "token:owner", SCOPED: "token:scoped"})
        # What is read is there, whoever reads it.
        assert await status(server, "admin", add(LEDGER, 0), add(SCOPED, 0)) is Status.EOK
        yield server


async def status(server: BookieServer, token: str | None, *requests: Request) -> Status:
    """What the last request of a fresh connection is told."""
    return await asyncio.to_thread(_status, entry_address(server), token, requests)


def _status(address: str, token: str | None, requests: tuple[Request, ...]) -> Status:
    with EntryClient(address) as client:
        if token is not None:
            given = token_of(token) if token in NAMES else token
            answer = client.ask(messages.AuthRequest(next(_txn_ids), "bookgate-token", given.encode()))
            if answer.status != Status.EOK:
                return Status(answer.status)
        for request in requests:
            answer = client.ask(request)
        return Status(answer.status)


def force(ledger: int) -> Request:
    return messages.ForceLedgerRequest(next(_txn_ids), ledger)


REQUESTS: dict[str, Callable[[int], Request]] = {
    "add": lambda ledger: add(ledger, 0),
    "recovery add": lambda ledger: add(ledger, 0, recovery=True),
    "read": lambda ledger: read(ledger, 0),
    "fence": lambda ledger: fence(ledger),
    "read lac": lambda ledger: messages.ReadLacRequest(next(_txn_ids), ledger),
    "write lac": lambda ledger: messages.WriteLacRequest(next(_txn_ids), ledger, 0, KEY, lac_packet(ledger, 0)),
    "force": force,
    "list entries": lambda ledger: messages.ListEntriesRequest(next(_txn_ids), ledger),
    "info": lambda ledger: messages.GetBookieInfoRequest(next(_txn_ids), 1),
}
READS = {"read", "read lac", "list entries"}
ADDS = {"add", "write lac", "force"}
_ANYWHERE: dict[str | None, set[str]] = {
    "admin": set(REQUESTS),
    "reader": {*READS, "info"},
    "stranger": {"info"},
    "bookie-2": {*READS, "info", "fence", "recovery add"},
    "nobody": set(),
    None: set(),
}
ALLOWED: dict[int, dict[str | None, set[str]]] = {
    LEDGER: {**_ANYWHERE, "owner": set(REQUESTS), "scoped": {"info"}},
    SCOPED: {**_ANYWHERE, "owner": {"info"}, "scoped": set(REQUESTS)},
}
"""By ledger and who asks. What an allowed request is told beside, the tests of the entry protocol know."""


async def test_every_operation_is_allowed_to_those_of_the_policy_only(tmp_path: Path) -> None:
    asked = {type(make(1)) for make in REQUESTS.values()}
    assert asked == set(OPERATIONS) - {messages.BatchReadRequest, messages.AuthRequest, messages.StartTlsRequest}
    async with guarded(tmp_path) as server:
        for ledger, by_whom in ALLOWED.items():
            for who, allowed in by_whom.items():
                for name in sorted(set(REQUESTS) - ({"fence"} & allowed)):
                    told = await status(server, who, REQUESTS[name](ledger))
                    assert (told is not Status.EUA) == (name in allowed), (ledger, who, name, told)
            assert await status(server, "admin", add(ledger, 1)) is Status.EOK, "who may not fence has not fenced"
            for who in (who for who, allowed in by_whom.items() if "fence" in allowed):
                assert await status(server, who, fence(ledger)) is Status.EOK, (ledger, who)
            # An add is told so, not that it is not authorised.
            assert await status(server, "admin", add(ledger, 2)) is Status.EFENCED


READS_OF_V2: dict[str, Callable[[], Request]] = {
    "add": lambda: add(LEDGER, 0),
    "recovery add": lambda: add(LEDGER, 0, recovery=True),
    "read": lambda: read(LEDGER, 0),
    "batch read": lambda: messages.BatchReadRequest(next(_txn_ids), LEDGER, 0, 10, 1 << 20),
    "fencing batch read": lambda: messages.BatchReadRequest(next(_txn_ids), LEDGER, 0, 1, 1 << 20, True, KEY),
}
ALLOWED_OF_V2: dict[str, set[str]] = {
    "reader": {"read", "batch read"},
    "stranger": set(),
    "bookie-2": {"recovery add", "read", "batch read", "fencing batch read"},
    "admin": set(READS_OF_V2),
}


async def test_the_binary_protocol_and_batch_reads_are_under_the_same_policy(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:

        def ask(who: str) -> set[str]:
            allowed = set()
            for name, make in READS_OF_V2.items():
                with BinaryEntryClient(entry_address(server)) as client:
                    token = messages.AuthRequest(0, "bookgate-token", token_of(who).encode())
                    assert client.ask(token).status == Status.EOK
                    if client.ask(make()).status != Status.EUA:
                        allowed.add(name)
            return allowed

        for who, allowed in ALLOWED_OF_V2.items():
            assert await asyncio.to_thread(ask, who) == allowed, who
        # Those who may not fence had not: the first who might has.
        assert await status(server, "admin", add(LEDGER, 1)) is Status.EFENCED


async def test_a_request_without_an_action_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one would be that a later protocol has, and the table of actions not."""

    class Novelty(NamedTuple):
        txn_id: int
        ledger_id: int

    def decode_newer(packet: memoryview) -> Any:
        request = decode_request(packet)
        return Novelty(*request[:2]) if isinstance(request, messages.ForceLedgerRequest) else request

    monkeypatch.setattr("bookgate.bookie.protocol.connection.decode_request", decode_newer)
    async with guarded(tmp_path) as server:
        assert await status(server, "admin", read(LEDGER, 0)) is Status.EOK
        with pytest.raises(ConnectionError):
            await status(server, "admin", force(LEDGER))
    assert "action=Novelty" in caplog.text
    assert "outcome=denied" in caplog.text
    assert "Fatal error" not in caplog.text


async def test_wrong_and_expired_credentials_are_not_let_in(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        assert await status(server, signed(**READER), read(LEDGER, 0)) is Status.EOK
        for bad in (
            "no-such-token",
            signed(**READER, exp=int(time.time()) - 60),
            signed(**READER, aud="another"),
            signed(**READER, iss="another"),
            signed(**READER, nbf=int(time.time()) + 600),
            signed(**READER)[:-8] + "AAAAAAAA",
        ):
            assert await status(server, bad, read(LEDGER, 0)) is Status.EUA
        # The right token, without what it needs.
        assert await status(server, signed(sub="somebody"), read(LEDGER, 0)) is Status.EUA


async def test_a_denied_request_changes_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        for request in (add(LEDGER, 1), fence(LEDGER), add(77, 0), fence(77)):
            assert await status(server, "stranger", request) is Status.EUA
        assert await status(server, "owner", add(LEDGER, 1)) is Status.EOK
        assert await status(server, "admin", read(77, 0)) is Status.ENOLEDGER


@pytest.mark.parametrize("who", ["stranger", "nobody"])
async def test_requests_in_one_piece_with_the_token_are_under_the_policy(tmp_path: Path, who: str) -> None:
    async with guarded(tmp_path) as server:

        def ask() -> list[int]:
            with EntryClient(entry_address(server)) as client:
                token = messages.AuthRequest(1, "bookgate-token", token_of(who).encode())
                client.send(token, read(LEDGER, 0), add(LEDGER, 1), fence(LEDGER), add(77, 0), force(LEDGER))
                return [client.receive().status for _ in range(6)]

        assert await asyncio.to_thread(ask) == [Status.EOK, *[Status.EUA] * 5]
        assert await status(server, "owner", add(LEDGER, 1)) is Status.EOK
        assert await status(server, "admin", read(77, 0)) is Status.ENOLEDGER


async def test_requests_behind_one_that_waits_for_its_owner_keep_their_order(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:

        def ask() -> list[int]:
            with EntryClient(entry_address(server)) as client:
                client.ask(messages.AuthRequest(1, "bookgate-token", token_of("owner").encode()))
                wanted = [add(LEDGER, number) for number in range(1, 20)]
                client.send(*wanted)
                return [client.receive().status for _ in wanted]

        assert await asyncio.to_thread(ask) == [Status.EOK] * 19


NO_LEDGER = -5
"""A number that no ledger id has."""


async def test_a_request_of_a_ledger_that_can_not_be_is_a_bad_one_and_the_connection_goes_on(tmp_path: Path) -> None:
    """Its owner can't be asked for."""
    bad = [
        *(read(NO_LEDGER, 0), fence(NO_LEDGER), add(NO_LEDGER, 0, body=packet(LEDGER, 0)), force(NO_LEDGER)),
        *(messages.ReadLacRequest(next(_txn_ids), NO_LEDGER), messages.ListEntriesRequest(next(_txn_ids), NO_LEDGER)),
    ]
    async with guarded(tmp_path) as server:
        for request in bad:
            assert await status(server, "owner", request) is Status.EBADREQ, request
        assert await status(server, "owner", *bad, read(LEDGER, 0)) is Status.EOK
        assert await status(server, "nobody", read(NO_LEDGER, 0)) is Status.EUA


async def test_an_owner_that_can_not_be_asked_for_holds_up_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For whatever reason, also one that is a bug."""

    async def faulty(_owners: LedgerOwners, _number: int) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(LedgerOwners, "learn", faulty)
    async with guarded(tmp_path) as server:
        assert await status(server, "owner", read(LEDGER, 0)) is Status.EIO
        assert await status(server, "owner", read(LEDGER, 0), REQUESTS["info"](LEDGER)) is Status.EOK
    assert "event=owner_unknown" in caplog.text


async def test_adds_that_come_together_are_under_the_policy_too(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:

        def ask(who: str) -> set[int]:
            with EntryClient(entry_address(server)) as client:
                client.ask(messages.AuthRequest(1, "bookgate-token", token_of(who).encode()))
                told = set()
                for first in (1, 31, 61):  # the first ones wait until the owner is known
                    client.send(*(add(LEDGER, number) for number in range(first, first + 30)))
                    told |= {client.receive().status for _ in range(30)}
                return told

        assert await asyncio.to_thread(ask, "stranger") == {Status.EUA}
        assert await status(server, "admin", read(LEDGER, 80)) is Status.ENOENTRY
        assert await asyncio.to_thread(ask, "owner") == {Status.EOK}
        assert await status(server, "admin", read(LEDGER, 80)) is Status.EOK


async def test_a_policy_that_changes_counts_for_connections_that_stand(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:

        def ask() -> None:
            with EntryClient(entry_address(server)) as client:
                client.ask(messages.AuthRequest(1, "bookgate-token", token_of("owner").encode()))
                assert client.status(add(LEDGER, 1)) == Status.EOK
                (tmp_path / "policy.toml").write_text('[[bindings]]\nprincipals = ["token:owner"]\nrole = "reader"\n')
                entry, deadline = itertools.count(2), time.monotonic() + 20
                while client.status(add(LEDGER, next(entry))) != Status.EUA:
                    assert time.monotonic() < deadline
                assert client.status(read(LEDGER, 1)) == Status.EOK
                # One that can't be used leaves the one before.
                (tmp_path / "policy.toml").write_text("[[bindings]\n")
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    assert client.status(read(LEDGER, 1)) == Status.EOK

        await asyncio.to_thread(ask)


ADDERS = (
    POLICY
    + """
[roles.adder]
actions = ["entry.add"]
[[bindings]]
principals = ["token:nobody"]
role = "adder"
"""
)


async def test_an_add_that_takes_a_ledger_from_others_needs_the_right_to_fence(tmp_path: Path) -> None:
    unbounded = 9
    async with guarded(tmp_path, ADDERS) as server:
        # The bookie has no such ledger yet: nobody loses it.
        assert await status(server, "nobody", at_term(unbounded, 0, 3), at_term(unbounded, 1, 3)) is Status.EOK
        assert await status(server, "nobody", at_term(unbounded, 2, 4)) is Status.EUA
        assert await status(server, "nobody", at_term(unbounded, 2, 3)) is Status.EOK, "the term has stayed"
        # Not by the short way either, which a connection takes once it has added.
        assert await status(server, "nobody", at_term(unbounded, 2, 3), at_term(unbounded, 3, 4)) is Status.EUA
        assert await status(server, "nobody", at_term(unbounded, 2, 2)) is Status.EINVALIDTERM
        # A term would shut out the writer of an ordinary ledger.
        assert await status(server, "nobody", at_term(LEDGER, 1, 1)) is Status.EUA
        assert await status(server, "nobody", add(LEDGER, 1)) is Status.EOK
    async with running_bookie(tmp_path, **policy_settings(tmp_path, ADDERS)) as server:
        assert await status(server, "nobody", at_term(unbounded, 3, 4)) is Status.EUA, "terms outlive a restart"
        assert await status(server, "admin", at_term(unbounded, 3, 4)) is Status.EOK
        assert await status(server, "nobody", at_term(unbounded, 4, 4)) is Status.EOK


def at_term(ledger: int, entry: int, term: int) -> Request:
    return add(ledger, entry)._replace(term=term, lafr=-1)


LIMITED = POLICY + '[[limits]]\nprincipals = ["token:owner"]\nadds_per_second = 10\n'


async def test_adds_over_the_rate_are_read_later_and_not_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path, LIMITED) as server:

        def ask() -> float:
            with EntryClient(entry_address(server)) as client:
                client.ask(messages.AuthRequest(1, "bookgate-token", token_of("owner").encode()))
                began = time.monotonic()
                wanted = [add(LEDGER, number) for number in range(1, 31)]
                client.send(*wanted)
                assert [client.receive().status for _ in wanted] == [Status.EOK] * 30
                assert client.status(add(LEDGER, 31)) == Status.EOK
                return time.monotonic() - began

        # 10 at once, and 20 more at 10 a second.
        assert await asyncio.to_thread(ask) > 1.5
        assert server._control is not None
        assert server._control.counts["entry", "token", "limited"] > 0


@pytest.mark.parametrize("policy", [POLICY, LIMITED], ids=["free", "limited"])
async def test_who_authenticates_as_somebody_else_has_that_ones_rights(tmp_path: Path, policy: str) -> None:
    async with guarded(tmp_path, policy) as server:

        def ask() -> list[int]:
            with EntryClient(entry_address(server)) as client:
                tokens = [
                    messages.AuthRequest(1, "bookgate-token", token_of(who).encode()) for who in ("owner", "stranger")
                ]
                # The second add takes the short way; the third comes in one piece with the authentication.
                pieces = ([tokens[0], add(LEDGER, 1)], [add(LEDGER, 2)], [tokens[1], add(LEDGER, 3)], [add(LEDGER, 4)])
                told = []
                for piece in pieces:
                    client.send(*piece)
                    told += [client.receive().status for _ in piece]
                return told

        well, denied = Status.EOK, Status.EUA
        assert await asyncio.to_thread(ask) == [well, well, well, well, denied, denied]


async def test_without_authentication_this_machine_is_local(tmp_path: Path) -> None:
    policy = '[[bindings]]\nprincipals = ["local"]\nrole = "reader"\n'
    (tmp_path / "policy.toml").write_text(policy)
    async with running_bookie(tmp_path, security_policy=tmp_path / "policy.toml") as server:
        assert await status(server, None, add(1, 0)) is Status.EUA
        assert await status(server, None, read(1, 0)) is Status.ENOLEDGER


async def test_a_bookie_that_anybody_reaches_does_not_start(tmp_path: Path) -> None:
    from bookgate.ledger.errors import IncorrectParameterException

    base: dict[str, Any] = {"metadata_uri": f"sqlite://{tmp_path}/metadata.db", "host": "0.0.0.0"}
    server = BookieServer(load_config(data_dir=tmp_path, **base))
    with pytest.raises(IncorrectParameterException, match="insecure = true"):
        await server.start()
    await server.stop()
    assert not (tmp_path / "metadata.db").exists()
