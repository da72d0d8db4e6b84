"""What a gateway allows, with the defaults of docs/gateway.md#limits."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Each limit bounds what one client, or all clients together, may cost this gateway or its store."""

    request_bytes: int = 4 * MIB
    """Of one request message."""

    connections: int = 10_000
    """Of all clients; more are closed as they come. One without a call for `IDLE_SECONDS` is told to go."""

    subscriptions_a_stream: int = 100_000
    subscriptions: int = 1_000_000
    """Of all Watch streams: each costs some 2 KiB."""

    streams_a_client: int = 100
    """Streaming calls under way on one connection (a client is its address and port)."""

    streams: int = 10_000
    """Streaming calls under way, of all clients: each costs some 20 KiB, a BatchRead of large ledgers some MiB if its
    client does not read.
    """

    listings: int = 256
    """Of these, Iterate calls with metadata: each costs up to a mebibyte if its client does not read."""

    batch: int = 10_000
    """Ledgers in one batch."""

    metadata_bytes: int = MIB - 1024
    """Of one ledger: the store's own limit less what its record needs besides."""

    store_calls: int = 1000
    """Calls to the store under way: more at once have starved a session's heartbeats and so expired it."""

    cache_bytes: int = 64 * MIB
    """Of cached metadata; 0 keeps nothing beyond the read under way."""

    cache_idle_seconds: float = 300.0
    """A cached ledger that nobody asked for goes, and its store watch with it."""
