"""The steps between a transport and an open connection: TLS, then authentication.

Order: START_TLS requested and answered in clear text (always in v3, even if v2 follows), the TLS handshake, AUTH in the
connection's own protocol. Nothing else is sent before these end. A step that fails ends the connection with an error
that names the step: SecurityException for TLS, NotLetInException for a rejected authentication,
BookieHandleNotAvailableException if the bookie just closed the connection.

Clear-text bytes after the response to START_TLS come from an attacker in between, and end the connection. An attacker
may also make a bookie respond inside TLS to a request injected in clear text. Transaction ids therefore begin at an
unpredictable number, and in v3, where each response has one, only the response to this client's own request counts. In
v2 a bookie can't report a rejection; it closes the connection. Source: docs/protocol/wire.md#authentication,
docs/protocol/wire.md#start_tls.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl

from bookgate.ledger.errors import BKException, BookieHandleNotAvailableException, NotLetInException, SecurityException
from bookgate.ledger.wire import v3
from bookgate.ledger.wire.frames import FrameError
from bookgate.ledger.wire.messages import AuthRequest, AuthResponse, StartTlsRequest, StartTlsResponse, Status
from bookgate.ledger.wire.v3 import ProtocolError
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.thinclient.bookies.auth import AUTH_DISABLED, ClientAuthProvider
from bookgate.thinclient.bookies.connection import Address, BookieConnection
from bookgate.thinclient.bookies.tls import TlsContexts, explain
from bookgate.thinclient.bookies.wire import Wire
from bookgate.thinclient.config import BookieTls, TlsMode

_MOST_STEPS = 32
"""Maximum payloads of one authentication exchange."""

_BROKEN = (OSError, FrameError, ProtocolError)


class ConnectionSetup:
    """Prepares the connections of one client. `BookieConnection` calls it with each new one."""

    def __init__(self, tls: BookieTls, auth: ClientAuthProvider | None) -> None:
        self._tls = tls
        self._contexts = TlsContexts(tls)
        self._auth = auth
        self._next_txn_id = itertools.count(secrets.randbits(62)).__next__

    async def __call__(self, connection: BookieConnection, wire: Wire, address: Address) -> asyncio.Transport:
        """Returns the transport to use from now on. Raises BKException."""
        timeout, step = self._tls.timeout, "TLS"
        try:
            async with asyncio.timeout(timeout):
                if self._tls.mode is not TlsMode.OFF:
                    await self._secure(wire, address)
                step = "authentication"
                if self._auth is not None:
                    self._check_secrecy(self._auth, address)
                    await self._authenticate(connection, wire, self._auth)
        except TimeoutError as error:
            kind = SecurityException if step == "TLS" else BookieHandleNotAvailableException
            raise kind(f"{step} was not finished within {timeout:g} s") from error
        return wire.transport

    async def _secure(self, wire: Wire, address: Address) -> None:
        context = self._contexts.current()
        if self._tls.mode is TlsMode.START_TLS:
            await self._ask_for_tls(wire)
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                wire.transport, wire, context, server_hostname=address.host, ssl_handshake_timeout=self._tls.timeout
            )
        except (ssl.SSLError, OSError) as error:
            wire.abandon()
            raise SecurityException(explain(error)) from error
        except BaseException:
            wire.abandon()
            raise
        if transport is None:
            raise SecurityException("TLS failed: the bookie closed the connection during the handshake")
        wire.transport = transport
        wire.hint = ", right after the TLS handshake: it may want a client certificate, or another one"

    def _check_secrecy(self, provider: ClientAuthProvider, address: Address) -> None:
        """Raises SecurityException before a token is sent in clear to another machine."""
        if self._tls.mode is TlsMode.OFF and getattr(provider, "needs_tls", False) and not is_loopback(address.host):
            raise SecurityException(
                f"{provider.plugin_name} sends a token, over TLS only: set bookie_tls, or leave auth_provider out"
            )

    async def _ask_for_tls(self, wire: Wire) -> None:
        txn_id = self._next_txn_id()
        wire.transport.write(v3.encode_request(StartTlsRequest(txn_id)))
        try:
            response = v3.decode_response(await wire.receive())
        except _BROKEN as error:
            raise SecurityException(f"it did not answer START_TLS: {error}") from error
        if response.txn_id != txn_id or not isinstance(response, StartTlsResponse):
            raise SecurityException("it answered START_TLS with something else")
        if response.status != Status.EOK:
            raise SecurityException(f"it has no TLS (its answer to START_TLS is status {response.status})")
        if not wire.begin_tls():
            raise SecurityException("bytes came in clear behind its answer to START_TLS")

    async def _authenticate(self, connection: BookieConnection, wire: Wire, provider: ClientAuthProvider) -> None:
        session = provider.new_session()
        payload: bytes | None = session.initial()
        for _ in range(_MOST_STEPS):
            response = await self._exchange(connection, wire, provider.plugin_name, payload or b"")
            if response.status != Status.EOK:
                raise NotLetInException(
                    f"it refuses the authentication by {provider.plugin_name} (status {response.status})"
                )
            if response.plugin_name == AUTH_DISABLED:
                return
            payload = session.process(response.payload)
            if payload is None:
                return
        raise NotLetInException(
            f"the authentication by {provider.plugin_name} did not come to an end in {_MOST_STEPS} steps"
        )

    async def _exchange(
        self, connection: BookieConnection, wire: Wire, plugin_name: str, payload: bytes
    ) -> AuthResponse:
        """Sends one payload and returns its response; anything else that arrives meanwhile is dropped."""
        txn_id = self._next_txn_id()
        wire.transport.write(connection.encode(AuthRequest(txn_id, plugin_name, payload)))
        try:
            while True:
                response = connection.decode(await wire.receive())
                if connection.answers_have_txn_ids and isinstance(response, AuthResponse) and response.txn_id != txn_id:
                    continue
                if isinstance(response, AuthResponse):
                    return response
                if isinstance(response, StartTlsResponse) and response.status != Status.EOK:
                    # The bookie's plugin requires more than TLS, which the bookie reports late, in its response to
                    # START_TLS.
                    return AuthResponse(txn_id, response.status)
        except _BROKEN as error:
            raise _broken_off(plugin_name, error) from error


def _broken_off(plugin_name: str, error: Exception) -> BKException:
    if isinstance(error, ssl.SSLError):  # in TLS 1.3 a client learns only now that its certificate was rejected
        return SecurityException(explain(error))
    return BookieHandleNotAvailableException(
        f"the connection ended during the authentication by {plugin_name}, perhaps because it was refused: {error}"
    )


def setup_for(tls: BookieTls, auth: ClientAuthProvider | None) -> ConnectionSetup | None:
    """The setup that the settings require, or None."""
    return None if tls.mode is TlsMode.OFF and auth is None else ConnectionSetup(tls, auth)
