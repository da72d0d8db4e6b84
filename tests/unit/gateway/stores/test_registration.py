"""A bookie's registration when ZooKeeper sessions end, and answers are lost, at awkward moments, which no real server
can be made to do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from bookgate.gateway.stores.zookeeper import registration
from bookgate.gateway.stores.zookeeper.layout import ClusterPaths
from bookgate.gateway.stores.zookeeper.registration import ZooKeeperRegistrationManager
from bookgate.ledger.bookie_info import BookieServiceInfo, Lease, lease_of
from bookgate.ledger.errors import LedgerExistException, MetaStoreException, UnknownOutcomeException, ZKException

pytestmark = pytest.mark.asyncio

BOOKIE = BookieServiceInfo.legacy("h:1")
NODE = "/l/available/h:1"
READ_ONLY_NODE = "/l/available/readonly/h:1"


def leased(lease_id: str, epoch: int = 1) -> BookieServiceInfo:
    return BOOKIE.with_lease(Lease.of(lease_id, epoch))


@dataclass
class Node:
    owner: int
    data: bytes
    version: int = 0


class Servers:
    """Nodes that several sessions share."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def end(self, session_id: int) -> None:
        for path in [path for path, node in self.nodes.items() if node.owner == session_id]:
            del self.nodes[path]


class Session:
    """The calls that registration makes: carried out in the order in which they were sent, also of a caller that was
    cancelled meanwhile."""

    session_timeout_seconds = 0.2

    def __init__(self, servers: Servers, numbers: Iterator[int]) -> None:
        self.servers = servers
        self.numbers = numbers
        self.session_id = next(numbers)
        self.connected, self.connection_epoch = True, 0
        self.before_exists: Callable[[], None] = lambda: None
        self.fail_creates = 0
        self.losing = ""
        """The call whose next answer is lost, though it was carried out; then the connection is new."""
        self.failing = ""
        """The call that is refused once, after an answer was lost."""
        self.losing_from = 0
        """The number of the first session in which something fails."""
        self.unseen: set[str] = set()
        """Nodes that the server of the present connection does not have yet."""
        self.lags = False
        self._sent: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._answering = asyncio.Event()
        self._answering.set()
        self._unsent = ""

    def hold(self, unsent: str = "") -> None:
        """Nothing is answered until `go_on`; or, if a call is named, only that is not even sent."""
        self._answering.clear()
        self._unsent = unsent

    def go_on(self) -> None:
        self._answering.set()
        self._unsent = ""
        self._answer()

    def _answer(self) -> None:
        while self._sent:
            operation, answer = self._sent.popleft()
            try:
                result, error = operation(), None
            except Exception as failure:
                result, error = None, failure
            if answer.done():
                continue
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

    async def _ask(self, name: str, operation: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if name == self._unsent:
            await self._answering.wait()
        may_fail = self.session_id >= self.losing_from
        if may_fail and self.failing == name and not self.losing:
            self.failing = ""
            raise MetaStoreException("the connection was lost")
        self._sent.append((operation, answer))
        if self._unsent or self._answering.is_set():
            self._answer()
        result = await answer
        if may_fail and self.losing == name:
            self.losing = ""
            raise UnknownOutcomeException("the connection was lost")
        return result

    def _seen(self, path: str) -> Node | None:
        return None if path in self.unseen else self.servers.nodes.get(path)

    async def sync(self, path: str) -> None:
        await self._ask("sync", self.unseen.clear)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, open_to_all: bool = False) -> None:
        owner = self.session_id

        def create() -> None:
            if self.fail_creates:
                self.fail_creates -= 1
                raise ZKException("throttled")
            if path in self.servers.nodes:
                raise NodeExistsError
            if ephemeral:
                self.servers.nodes[path] = Node(owner, data)
            if self.lags and self.losing == "create":
                self.unseen.add(path)

        await self._ask("create", create)

    async def exists(self, path: str, watch: Any = None) -> Any:
        await asyncio.sleep(0)
        self.before_exists()
        return await self._ask("exists", lambda: self._stat(self._seen(path)))

    async def get(self, path: str, watch: Any = None) -> Any:
        def get() -> Any:
            if (node := self._seen(path)) is None:
                raise NoNodeError
            return node.data, self._stat(node)

        return await self._ask("get", get)

    async def set(self, path: str, data: bytes, version: int) -> None:
        def change() -> None:
            node = self._at(path, version)
            node.data, node.version = data, node.version + 1

        await self._ask("set", change)

    async def take_over(self, path: str, data: bytes, version: int) -> None:
        owner = self.session_id

        def take() -> None:
            self._at(path, version)
            self.servers.nodes[path] = Node(owner, data, 0 if version else 1)

        await self._ask("take_over", take)

    async def delete(self, path: str, version: int = -1) -> None:
        def delete() -> None:
            self._at(path, version)
            del self.servers.nodes[path]

        await self._ask("delete", delete)

    def _at(self, path: str, version: int) -> Node:
        if (node := self.servers.nodes.get(path)) is None:
            raise NoNodeError
        if version not in (-1, node.version):
            raise BadVersionError
        return node

    @staticmethod
    def _stat(node: Node | None) -> Any:
        return None if node is None else SimpleNamespace(ephemeralOwner=node.owner, version=node.version)


class Registered:
    """A registration manager whose sessions a test ends."""

    def __init__(self, servers: Servers, numbers: Iterator[int]) -> None:
        self.session = Session(servers, numbers)
        self.manager = ZooKeeperRegistrationManager(self.session, ClusterPaths("/l"))  # type: ignore[arg-type]

    @property
    def owners(self) -> dict[str, int]:
        return {path: node.owner for path, node in self.session.servers.nodes.items()}

    def end_session(self) -> None:
        self.session.servers.end(self.session.session_id)
        self.session.session_id = next(self.session.numbers)
        self.manager.session_renewed()

    def end_session_once_at_exists(self) -> None:
        def end() -> None:
            self.session.before_exists = lambda: None
            self.end_session()

        self.session.before_exists = end

    async def settled(self) -> None:
        """Returns once nothing more is done in the background."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Registered]:
    """Makes gateways at the same servers; their sessions have the numbers 1, 2, ..."""
    monkeypatch.setattr(registration, "_RETRY_SECONDS", 0)
    servers, numbers = Servers(), iter(range(1, 100))
    return lambda: Registered(servers, numbers)


@pytest.fixture
def bookie(gateways: Callable[[], Registered]) -> Registered:
    return gateways()


async def test_session_that_ends_during_the_first_registration(bookie: Registered) -> None:
    bookie.end_session_once_at_exists()
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    assert bookie.owners == {NODE: 2}


async def test_session_that_ends_while_the_bookie_is_registered_again(bookie: Registered) -> None:
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    bookie.end_session_once_at_exists()
    bookie.end_session()
    await bookie.settled()
    assert bookie.owners == {NODE: 3}


async def test_refusal_of_the_store_is_not_the_end_of_registering_again(bookie: Registered) -> None:
    await bookie.manager.register_bookie(BOOKIE, read_only=False)
    bookie.session.fail_creates = 2
    bookie.end_session()
    await bookie.settled()
    assert bookie.owners == {NODE: 2}


async def passing() -> None:
    """Everything that can be done without an answer that is held is done."""
    for _ in range(20):
        await asyncio.sleep(0)


async def leave_while_it_is_registered_again(bookie: Registered, unsent: str, info: BookieServiceInfo = BOOKIE) -> None:
    """The bookie unregisters when the creation of its node in a new session is to be sent, or was sent."""
    await bookie.manager.register_bookie(info, read_only=False)
    bookie.session.hold(unsent)
    bookie.end_session()
    await passing()
    leaving = asyncio.create_task(unregistered(bookie, info.lease))
    await passing()
    bookie.session.go_on()
    await leaving


async def unregistered(bookie: Registered, lease: Lease | None) -> None:
    """As the service of a gateway does it: until it was carried out."""
    while True:
        try:
            return await bookie.manager.unregister_bookie("h:1", lease)
        except MetaStoreException:
            await asyncio.sleep(0)


@pytest.mark.parametrize("unsent", ["create", ""])
@pytest.mark.parametrize("failing", ["", "exists", "get", "sync", "delete"])
@pytest.mark.parametrize("losing", ["", "create"])
async def test_bookie_taken_out_while_it_is_registered_again_stays_out(
    bookie: Registered, unsent: str, losing: str, failing: str
) -> None:
    bookie.session.losing_from, bookie.session.losing, bookie.session.failing = 2, losing, failing
    await leave_while_it_is_registered_again(bookie, unsent)
    assert bookie.owners == {}, "once that is said"
    await bookie.settled()
    assert bookie.owners == {}


async def test_the_next_process_of_a_bookie_that_left_registers_elsewhere(gateways: Callable[[], Registered]) -> None:
    first, second = gateways(), gateways()
    first.session.losing_from, first.session.losing = 3, "create"
    await leave_while_it_is_registered_again(first, "create", leased("first-life"))
    await first.settled()
    await second.manager.register_bookie(leased("second-life"), read_only=False)
    assert second.owners == {NODE: second.session.session_id}


@pytest.mark.parametrize("unsent", ["create", ""])
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_bookie_that_left_and_came_back_during_a_repetition_is_as_it_wished_last(
    bookie: Registered, read_only: bool, unsent: str
) -> None:
    before, after = leased("first-life"), leased("second-life")
    await bookie.manager.register_bookie(before, read_only=False)
    bookie.session.losing = "create"
    bookie.session.hold(unsent)
    bookie.end_session()
    await passing()
    leaving = asyncio.create_task(unregistered(bookie, before.lease))
    await passing()
    coming = asyncio.create_task(bookie.manager.register_bookie(after, read_only=read_only))
    await passing()
    bookie.session.go_on()
    outcomes = await asyncio.gather(leaving, coming, return_exceptions=True)
    if isinstance(outcomes[1], MetaStoreException):
        await bookie.manager.register_bookie(after, read_only=read_only)
    await bookie.settled()
    assert bookie.owners == {READ_ONLY_NODE if read_only else NODE: bookie.session.session_id}
    (node,) = bookie.session.servers.nodes.values()
    assert lease_of(node.data) == after.lease


async def test_a_bookie_that_leaves_while_it_is_being_registered_is_out(bookie: Registered) -> None:
    bookie.session.hold()
    coming = asyncio.create_task(bookie.manager.register_bookie(BOOKIE, read_only=False))
    await passing()
    leaving = asyncio.create_task(bookie.manager.unregister_bookie("h:1"))
    await passing()
    bookie.session.go_on()
    await asyncio.gather(coming, leaving)
    bookie.end_session()
    await bookie.settled()
    assert bookie.owners == {}


async def test_a_node_is_taken_back_that_the_next_server_does_not_show_yet(bookie: Registered) -> None:
    bookie.session.losing, bookie.session.lags = "create", True
    with pytest.raises(UnknownOutcomeException):
        await bookie.manager.register_bookie(BOOKIE, read_only=False)
    await bookie.manager.unregister_bookie("h:1")
    assert bookie.owners == {}


async def test_what_a_lost_answer_left_goes_when_the_bookie_has_moved_on(
    gateways: Callable[[], Registered], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_RETRY_SECONDS", 0.02)
    first, second = gateways(), gateways()
    await first.manager.register_bookie(leased("life", 1), read_only=False)
    first.session.losing = "create"
    first.end_session()
    await passing()
    assert first.owners == {NODE: 3}
    # The next gateway had looked for the first one's node before that was created.
    first.session.servers.nodes[READ_ONLY_NODE] = Node(second.session.session_id, leased("life", 2).encode())
    await first.settled()
    assert first.owners == {READ_ONLY_NODE: second.session.session_id}


async def test_leaving_does_not_wait_for_the_end_of_anothers_registration(gateways: Callable[[], Registered]) -> None:
    first, second = gateways(), gateways()
    first.session.session_timeout_seconds = 3600
    await first.manager.register_bookie(leased("life"), read_only=False)
    first.session.servers.nodes[NODE] = Node(second.session.session_id, leased("another").encode())
    first.end_session()
    await passing()
    async with asyncio.timeout(5):
        await first.manager.unregister_bookie("h:1", leased("life").lease)
        await first.settled()
    assert first.owners == {NODE: second.session.session_id}


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_stream_that_was_replaced_does_not_register_its_bookie_again(
    bookie: Registered, read_only: bool
) -> None:
    newer = leased("life", 2)
    await bookie.manager.register_bookie(newer, read_only=True)
    with pytest.raises(LedgerExistException, match="since"):
        await bookie.manager.register_bookie(leased("life", 1), read_only=read_only)
    assert bookie.owners == {READ_ONLY_NODE: 1}
    assert bookie.session.servers.nodes[READ_ONLY_NODE].data == newer.encode()
