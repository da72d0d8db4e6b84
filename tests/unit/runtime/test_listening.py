"""What listening sockets hand down to the connections that they accept."""

from __future__ import annotations

import socket

from bookgate.runtime.listening import listen


def test_a_peer_that_is_gone_is_noticed() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 120
