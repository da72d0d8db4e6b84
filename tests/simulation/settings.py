"""Settings of what runs in a world: as given, whatever the environment of the test run says, and smaller than usual."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic_settings import BaseSettings

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.storage.options import StorageConfig
from bookgate.gateway.config import GatewayConfig
from bookgate.runtime.security.access_control import AccessControl
from bookgate.runtime.settings import only_arguments
from bookgate.thinclient.config import ClientConfig
from tests.unit.bookie.storage.storage_support import changed

S = TypeVar("S", bound=BaseSettings)

BOOKIE_PORT = 3181

_BOOKIE: dict[str, Any] = {
    "metadata_uri": "sim://metadata",
    "host": "0.0.0.0",
    "insecure": True,
    "port": BOOKIE_PORT,
    "http_port": 0,
    "gateway_port": 0,
    "flush_interval_seconds": 1.0,
    "disk_check_interval_seconds": 2.0,
    "min_usable_for_high_priority_writes_mb": 0,
    "min_usable_for_entry_log_mb": 0,
    "min_usable_for_index_mb": 0,
}

_LIMITS: dict[str, tuple[int, ...]] = {
    "journal_max_size_bytes": (20_000, 100_000, 1 << 20),
    "journal_pre_alloc_bytes": (4096, 1 << 20),
    "journal_max_backups": (0, 1, 5),
    "journal_buffered_writes_bytes": (2000, 512 * 1024),
    "write_cache_bytes": (40_000, 200_000, 1 << 24),
    "ledger_cache_bytes": (2 * 8192, 1 << 20),
    "read_ahead_bytes": (0, 20_000, 1 << 20),
    "open_file_limit": (2, 256),
    "ledger_state_limit": (1, 3, 1000),
    "entry_log_max_bytes": (10_000, 100_000, 1 << 20),
}
"""What the limits of a bookie's storage are drawn from, some far below what can be set: small ones are reached."""


_MERGING = 0.5
"""The share of bookies whose compactions move what is alive in any log that is small."""


class SimulatedClientConfig(ClientConfig):
    """A client's settings."""


class SimulatedGatewayConfig(GatewayConfig):
    """A gateway's settings."""


class SimulatedBookieConfig(BookieConfig):
    """A bookie's settings, with other limits of storage."""

    limits: dict[str, int]
    access: Any = None
    """The world's policy (`WorldAccess`), if it has one."""

    def storage(self) -> StorageConfig:
        return changed(super().storage(), self.limits)

    def own_client(self) -> ClientConfig:
        own = {} if self.access is None else self.access.client_settings(self.advertised_address)
        return client_settings({**self.client, **own})

    def access_control(self) -> AccessControl | None:
        return None if self.access is None else self.access.control()

    def hosted_gateway(self) -> GatewayConfig:
        own = {"metadata_uri": self.metadata_uri, "host": self.host, "port": self.gateway_port}
        return _checked(SimulatedGatewayConfig, {**self.gateway, **own})


_seen: dict[tuple[type[BaseSettings], str], BaseSettings] = {}


def _checked(kind: type[S], given: dict[str, Any]) -> S:
    """Settings by their values. Nobody changes them, and worlds have the same ones again and again."""
    key = kind, repr(sorted(given.items()))
    if key not in _seen:
        with only_arguments():
            _seen[key] = kind(**given)
    return cast("S", _seen[key])


def client_settings(given: dict[str, Any]) -> SimulatedClientConfig:
    return _checked(SimulatedClientConfig, given)


def bookie_settings(name: str, rng: random.Random, given: dict[str, Any]) -> SimulatedBookieConfig:
    """The settings of the bookie on the host `name`: limits and directories from its seed, the rest as given."""
    root = root_of(name)
    drawn = {
        "limits": {name: rng.choice(values) for name, values in _LIMITS.items()},
        "journal_directories": tuple(root / f"journal{number}" for number in range(rng.choice((1, 1, 2)))),
        "ledger_directories": tuple(root / f"ledgers{number}" for number in range(rng.choice((1, 1, 2)))),
        "advertised_address": name,
        # Worlds are short: few of their logs are ever partly dead. So compaction merges small ones.
        "use_target_entry_log_size_for_gc": rng.random() < _MERGING,
    }
    # What differs between bookies is put in afterwards: it is right as it is.
    placeholders = {"limits": {}, "journal_directories": (root_of("any"),), "ledger_directories": (root_of("any"),)}
    checked = _checked(SimulatedBookieConfig, {**_BOOKIE, **placeholders, **given})
    return checked.model_copy(update={key: value for key, value in drawn.items() if key not in given})


def root_of(name: str) -> Path:
    """Below it a bookie has its directories."""
    return Path("/") / name
