"""The settings of real gRPC channels. A simulator opens its own channels instead."""

from __future__ import annotations

import os
from collections.abc import Callable

import grpc
from grpc.aio import Channel

from bookgate.ledger.errors import IllegalOpException

OpenChannel = Callable[[str, grpc.ChannelCredentials | None], Channel]
"""Opens a channel to `host:port`; without credentials in plain text."""

_MAX_MESSAGE = 64 * 1024 * 1024


def ping_milliseconds(version: str) -> tuple[int, int]:
    """After how long without data a gateway is pinged, and how long its answer may take.

    gRPC before 1.80 reads no socket while the interpreter is busy elsewhere: a pause of the application itself, such
    as a long garbage collection, would look as if the gateway had stopped, and calls would lose their answers.
    """
    reads_by_itself = tuple(map(int, version.split(".")[:2])) >= (1, 80)
    return (300, 400) if reads_by_itself else (1000, 10_000)


_PING_AFTER, _PING_TIMEOUT = ping_milliseconds(grpc.__version__)
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.enable_retries", 0),
    # A stopped gateway is detected within the sum of the two, while a call or stream is open to it. Pings are sent only
    # then, and only when nothing was received.
    ("grpc.keepalive_time_ms", _PING_AFTER),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT),
    ("grpc.http2.max_pings_without_data", 0),
    # A bandwidth probe in flight would take the place of such a ping, with a timeout of a minute.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT),
]

_grpc_process: int | None = None
"""The process that used gRPC first; None before."""


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> Channel:
    """Connects at the first call. Raises IllegalOpException in a child of a process that has used gRPC."""
    _check_process()
    if credentials is not None:
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def _check_process() -> None:
    """gRPC's threads do not survive a fork: a child of a process that has used gRPC would hang."""
    global _grpc_process
    _grpc_process = _grpc_process or os.getpid()
    if _grpc_process != os.getpid():
        raise IllegalOpException(
            f"process {_grpc_process} used gRPC before it forked process {os.getpid()}, which therefore can't; "
            "fork before the first client connects, or start the process with `spawn`"
        )
