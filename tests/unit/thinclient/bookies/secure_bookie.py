"""A fake bookie with TLS and authentication, after the tables of docs/protocol/wire.md#authentication,
docs/protocol/wire.md#start_tls."""

from __future__ import annotations

import asyncio
import ssl

from bookgate.ledger.wire import v2
from bookgate.ledger.wire.error_responses import error_response
from bookgate.ledger.wire.frames import FrameDecoder, FrameError
from bookgate.ledger.wire.messages import (
    AuthRequest,
    AuthResponse,
    Operation,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    Status,
    StatusResponse,
)
from bookgate.ledger.wire.v3 import decode_request, encode_response
from tests.unit.thinclient.fakes import FakeBookie


class SecureBookie(FakeBookie):
    """Switches: the context (None: no TLS), TLS from the first byte, the token that is asked for."""

    def __init__(self, context: ssl.SSLContext | None = None, native: bool = False, token: bytes | None = None) -> None:
        super().__init__()
        self.context = context
        self.native = native
        self.token = token
        self.plugin = "bookgate-token"
        self.auth_steps = 1
        """Payloads until the bookie is content."""
        self.greeting = b""
        """Sent in clear behind the answer to START_TLS."""
        self.silent_to: type | None = None
        self.said_instead: list[Response] = []
        """Answers to what somebody in between asked before TLS, sent where the client is kept waiting."""
        self.tls_connections = 0
        self.connections = 0
        # asyncio holds tasks weakly: one that waits in a handshake for ever would be collected while it is pending.
        self._serving: set[asyncio.Task[None] | None] = set()

    async def start(self) -> None:
        context = self.context if self.native else None
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        self._serving.add(asyncio.current_task())
        self.connections += 1
        self.tls_connections += self.native
        steps_left = self.auth_steps if self.token is not None else 0
        decoder = FrameDecoder()
        try:
            while data := await reader.read(1 << 16):
                for packet in decoder.feed(data):
                    v3 = packet[0] == 0x0A
                    request = decode_request(packet) if v3 else v2.decode_request(packet).request
                    if isinstance(request, self.silent_to or ()):
                        writer.write(b"".join(map(encode_response, self.said_instead)))
                        continue
                    if isinstance(request, StartTlsRequest):
                        await self.start_tls(request, writer)
                    elif isinstance(request, AuthRequest):
                        steps_left = self._authenticate(request, writer, v3, steps_left)
                    elif steps_left:
                        self._refuse(request, writer, v3)
                    elif v3:
                        self._take(request, writer, encode_response)
                    else:
                        self._take_v2(packet, writer)
        except (ConnectionError, asyncio.CancelledError, ssl.SSLError, FrameError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def start_tls(self, request: StartTlsRequest, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        if self.context is None:
            writer.write(encode_response(error_response(request, Status.EBADREQ)))
            return
        writer.write(encode_response(StartTlsResponse(request.txn_id, Status.EOK)) + self.greeting)
        await writer.start_tls(self.context)
        self.tls_connections += 1

    def _authenticate(self, request: AuthRequest, writer: asyncio.StreamWriter, v3: bool, steps_left: int) -> int:
        self.requests.append(request)
        encode = encode_response if v3 else v2.encode_response
        if self.token is None:
            writer.write(encode(AuthResponse(request.txn_id, Status.EOK, "AuthDisabledPlugin", b"")))
        elif request.plugin_name != self.plugin or request.payload != self.token:
            if v3:
                writer.write(encode_response(AuthResponse(request.txn_id, Status.EUA)))
            writer.close()
        else:
            steps_left -= 1
            writer.write(encode(AuthResponse(request.txn_id, Status.EOK, self.plugin, b"%d" % steps_left)))
        return steps_left

    def _refuse(self, request: Request, writer: asyncio.StreamWriter, v3: bool) -> None:
        self.requests.append(request)
        if v3:
            writer.write(encode_response(StatusResponse(request.txn_id, Operation.ADD_ENTRY, Status.EUA)))
        else:
            writer.close()
