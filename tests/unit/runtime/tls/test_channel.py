"""TLS in memory: what its user learns of the client's end."""

from __future__ import annotations

import ssl

import pytest
import trustme

from bookgate.runtime.tls.channel import TlsChannel


def test_a_client_that_says_that_nothing_more_comes_has_ended() -> None:
    authority = trustme.CA()
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(ours)
    authority.configure_trust(theirs)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = theirs.wrap_bio(incoming, outgoing, server_hostname="localhost")
    channel = TlsChannel(ours)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    channel.feed(outgoing.read())
    assert not channel.handshake()
    incoming.write(channel.take_outgoing())
    client.do_handshake()
    client.write(b"said")
    channel.feed(outgoing.read())
    assert channel.handshake()

    buffer = memoryview(bytearray(64))
    assert (channel.read_into(buffer), bytes(buffer[:4])) == (4, b"said")
    assert (channel.read_into(buffer), channel.ended) == (0, False)
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    channel.feed(outgoing.read())
    assert (channel.read_into(buffer), channel.ended) == (0, True)
