"""One client's connection to a simulated ZooKeeper server: requests in, answers and watch events out, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation import zookeeper_wire as wire
from tests.simulation.znode_tree import Code, Failed, Happened, Multi, Operation, Stat

if TYPE_CHECKING:
    from tests.simulation.zookeeper import Server

_PASSWORD = b"simulated session"
_NO_ERROR = b"\0\0\0\0"


class Connection(asyncio.Protocol):
    """One client's connection to a server. Requests are answered in their order."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._frames = wire.FrameReader()
        self._requests: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self.session = 0
        self._held: bytearray | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.serving:
            transport.abort()
            return
        self._server.entered(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._frames.feed(data)
        except ValueError:
            self.end()
            return
        for body in frames:
            if self.session:
                self._server.ensemble.heard_of(self._server, self.session)
            self._requests.append(body)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.left(self)
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """Cuts it; what was answered before still arrives."""
        self._server.left(self)
        if self._transport is not None:
            self._transport.close()
        if self._task is not None:
            self._task.cancel()

    def tell(self, happened: Happened, path: str) -> None:
        self._write(wire.event(happened, path))

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._held is not None:
            self._held += data
            return
        seconds, self._server.breaks_off = self._server.breaks_off, 0.0
        if seconds:
            half = len(data) // 2
            data, self._held = data[:half], bytearray(data[half:])
            asyncio.get_running_loop().call_later(seconds, self._go_on)
        self._transport.write(data)

    def _go_on(self) -> None:
        """What was lost on the way is sent again, and what was to follow."""
        held, self._held = self._held, None
        if held is not None and self._transport is not None:
            self._transport.write(bytes(held))

    async def _next(self) -> bytes:
        while not self._requests:
            self._news.clear()
            await self._news.wait()
        return self._requests.popleft()

    async def _serve(self) -> None:
        try:
            if not await self._connect(wire.decode_connect(await self._next())):
                self.end()
                return
            while True:
                xid, request = wire.decode_request(await self._next())
                if self._server.miscounts and xid > 0:
                    self._server.miscounts = False
                    xid += 1
                await self._answer(xid, request)
        except ConnectionError:
            self.end()

    async def _connect(self, request: wire.ConnectRequest) -> bool:
        server = self._server
        if request.last_zxid > server.tree.zxid:
            # It has seen more than is known here.
            return False
        if request.session:
            session = await server.ensemble.take_session(server, request.session)
        else:
            session = await server.ensemble.open_session(server, request.timeout_ms)
            if session is None:
                return False
        if session is None:
            self._write(wire.frame(wire.encode_connected(0, 0, b"\0" * 16)))
            return False
        self.session = session.number
        self._write(wire.frame(wire.encode_connected(int(session.timeout * 1000), session.number, _PASSWORD)))
        return True

    # --- requests -----------------------------------------------------------------------------------------------

    async def _answer(self, xid: int, request: wire.Request) -> None:
        server, tree = self._server, self._server.tree
        if isinstance(request, wire.Ping):
            self._write(wire.answer(wire.PING_XID, tree.zxid, Code.OK))
        elif isinstance(request, wire.Authenticate):
            self._write(wire.answer(wire.AUTH_XID, tree.zxid, Code.OK))
        elif isinstance(request, wire.Close):
            await server.ensemble.close_session(server, self.session)
            self._write(wire.answer(xid, tree.zxid, Code.OK))
        elif isinstance(request, wire.Sync):
            await server.ensemble.synced(server)
            self._write(wire.answer(xid, tree.zxid, Code.OK, wire.encode_text(request.path)))
        elif isinstance(request, Operation | Multi):
            await self._change(xid, request)
        else:
            code, body = self._look(request)
            self._write(wire.answer(xid, tree.zxid, code, body))

    async def _change(self, xid: int, change: Operation | Multi) -> None:
        ensemble = self._server.ensemble
        outcome = await ensemble.propose(self._server, self.session, change)
        if isinstance(outcome, Code):
            self._write(wire.answer(xid, self._server.tree.zxid, outcome))
            return
        transaction, results = outcome
        if self._server.answers_lost and ensemble.rng.random() < self._server.answers_lost:
            ensemble.count("answers lost")
            self.end()
            return
        if isinstance(change, Multi):
            body = wire.encode_results(change.operations, results)
            self._write(wire.answer(xid, transaction.zxid, Code.OK, body))
            return
        result = results[0]
        code = result if isinstance(result, Code) else Code.OK
        self._write(wire.answer(xid, transaction.zxid, code, wire.encode_result(result)))

    def _look(self, request: wire.Request) -> tuple[Code, bytes]:
        """What needs this server only."""
        try:
            if isinstance(request, wire.Read):
                return Code.OK, self._read(request)
            if isinstance(request, wire.ReadMany):
                return Code.OK, wire.encode_contents([self._content(path) for path in request.paths])
        except Failed as failed:
            return failed.code, b""
        if isinstance(request, wire.RemoveWatch):
            return self._remove_watch(request), b""
        if isinstance(request, wire.WatchTree) and self._server.ensemble.watches_trees:
            self._watch(self._server.tree_watches, request.path)
            return Code.OK, _NO_ERROR
        return Code.UNIMPLEMENTED, b""

    def _read(self, request: wire.Read) -> bytes:
        tree = self._server.tree
        if request.watch and request.kind == "exists":
            # Also on a node that is not there: its creation is to be told.
            self._watch(self._server.data_watches, request.path)
        data, stat = tree.content(request.path)
        if request.kind == "exists":
            return wire.encode_stat(stat)
        if request.kind == "get":
            if request.watch:
                self._watch(self._server.data_watches, request.path)
            return wire.encode_content(data, stat)
        if request.watch:
            self._watch(self._server.child_watches, request.path)
        names = wire.encode_names(tree.children(request.path))
        return names + wire.encode_stat(stat) if request.kind == "children2" else names

    def _content(self, path: str) -> tuple[bytes, Stat] | Code:
        try:
            return self._server.tree.content(path)
        except Failed as failed:
            return failed.code

    def _watch(self, watches: dict[str, dict[Connection, None]], path: str) -> None:
        watches.setdefault(path, {})[self] = None

    def _remove_watch(self, request: wire.RemoveWatch) -> Code:
        server, code = self._server, Code.NO_WATCHER
        every = (server.data_watches, server.child_watches, server.tree_watches)
        for watches in every if request.every else every[:1]:
            watchers = watches.get(request.path, {})
            if self not in watchers:
                continue
            code = Code.OK
            del watchers[self]
            if not watchers:
                del watches[request.path]
        return code
