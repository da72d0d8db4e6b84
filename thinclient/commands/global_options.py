"""What stands before a command (`bookgate --config client.toml ledger list`): the settings' file and the TLS files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bookgate.thinclient.gateways.uri import ClientTlsFiles


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What stands before the command: the configuration file and the TLS files."""

    file: Path | None = None
    tls: ClientTlsFiles = field(default=ClientTlsFiles())
