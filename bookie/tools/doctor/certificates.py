"""How long a server's certificate is valid, seen in a TLS handshake on a connection that carries nothing else."""

from __future__ import annotations

import asyncio
import ssl
import time

from bookgate.bookie.tools.doctor.observations import Validity
from bookgate.ledger.errors import SecurityException
from bookgate.ledger.wire import v3
from bookgate.ledger.wire.messages import StartTlsRequest

_MOST_BYTES = 64 * 1024
"""Far above the answer to START_TLS."""


async def validity(host: str, port: int, context: ssl.SSLContext) -> Validity:
    """That of a server that begins with TLS.

    Raises OSError if there is no such connection, or the context does not accept the certificate, SecurityException if
    it accepts any. The caller limits the time.
    """
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        return _of(writer)
    finally:
        writer.close()


async def validity_after_start_tls(host: str, port: int, context: ssl.SSLContext) -> Validity:
    """That of an entry port, asked for TLS as docs/protocol/wire.md#start_tls says.

    Raises OSError, EOFError or ValueError if it has none, or the context does not accept the certificate,
    SecurityException if it accepts any. The caller limits the time.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(v3.encode_request(StartTlsRequest(1)))
        # TLS cannot begin before all of the answer has come. Whether it grants TLS shows in the handshake.
        await reader.readexactly(min(int.from_bytes(await reader.readexactly(4)), _MOST_BYTES))
        await writer.start_tls(context, server_hostname=host)
        return _of(writer)
    finally:
        writer.close()


def _of(writer: asyncio.StreamWriter) -> Validity:
    certificate = writer.get_extra_info("peercert")
    if not certificate:
        raise SecurityException("the context checks no certificate, so it does not tell until when it is valid")
    begins, ends = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return Validity(ends - begins, ends - time.time())
