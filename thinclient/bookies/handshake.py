"""What stands between a transport and an open connection: TLS, then authentication.

Order: START_TLS asked and answered in clear (always in v3, also where v2 follows), the TLS handshake, AUTH in the
connection's own protocol. Nothing else leaves before the end of it. Each step that fails ends the connection with an
error that says which step: SecurityException for TLS, NotLetInException for a refused authentication,
BookieHandleNotAvailableException where the bookie just went away.

Bytes that arrive in clear behind the answer to START_TLS come from somebody in between, and end the connection. So may
an answer inside TLS to what was asked in clear: transaction ids begin where nobody can guess, and in v3, which has
them in each answer, only the answer to this client's own request counts. In v2 a bookie can't say that it refuses: it
closes the connection. Source: docs/protocol/wire.md#authentication, docs/protocol/wire.md#start_tls.
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
from bookgate.thinclient.bookies.auth import AUTH_DISABLED, ClientAuthProvider
from bookgate.thinclient.bookies.connection import Address, BookieConnection
from bookgate.thinclient.bookies.tls import TlsContexts, explain
from bookgate.thinclient.bookies.wire import Wire
from bookgate.thinclient.config import BookieTls, TlsMode

_MOST_STEPS = 32
"""Payloads of an authentication that goes on and on."""

_BROKEN = (OSError, FrameError, ProtocolError)


class ConnectionSetup:
    """Makes the connections of one client usable. Called by `BookieConnection` with each fresh one."""

    def __init__(self, tls: BookieTls, auth: ClientAuthProvider | None) -> None:
        self._tls = tls
        self._contexts = TlsContexts(tls)
        self._auth = auth
        self._next_txn_id = itertools.count(secrets.randbits(62)).__next__

    async def __call__(self, connection: BookieConnection, wire: Wire, address: Address) -> asyncio.Transport:
        """The transport to use from now on. Raises BKException."""
        timeout, step = self._tls.timeout, "TLS"
        try:
            async with asyncio.timeout(timeout):
                if self._tls.mode is not TlsMode.OFF:
                    await self._secure(wire, address)
                step = "authentication"
                if self._auth is not None:
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
        """One payload and its answer; anything else that comes meanwhile is dropped."""
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
                    # TLS was not enough for the bookie's plugin, which it says in answer to START_TLS, late.
                    return AuthResponse(txn_id, response.status)
        except _BROKEN as error:
            raise _broken_off(plugin_name, error) from error


def _broken_off(plugin_name: str, error: Exception) -> BKException:
    if isinstance(error, ssl.SSLError):  # in TLS 1.3 a client learns only now that its certificate was refused
        return SecurityException(explain(error))
    return BookieHandleNotAvailableException(
        f"the connection ended during the authentication by {plugin_name}, perhaps because it was refused: {error}"
    )


def setup_for(tls: BookieTls, auth: ClientAuthProvider | None) -> ConnectionSetup | None:
    """The setup that the settings ask for; None where there is nothing to set up."""
    return None if tls.mode is TlsMode.OFF and auth is None else ConnectionSetup(tls, auth)
