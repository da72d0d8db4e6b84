"""Secret files named by a configuration file that every user of the machine can read.

Files that a group can read are not reported: administrators give a file that way to the user that a service runs as
(`root:bookgate`, mode 640), and Kubernetes mounts secrets so. Who belongs to the group is the administrator's decision.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bookgate.bookie.tools.doctor.findings import Finding, warning
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.settings_loader import read_file
from bookgate.thinclient.gateways.uri import is_gateway_uri, parse_gateways

_KEYS = (
    *("tls_key", "bookie_tls_key", "zookeeper_tls_key", "http_token_file", "token_file", "auth_token_file"),
    *("security_tokens", "audit_file"),
)
_URIS = ("metadata_uri", "gateways")
_EMBEDDED = "sqlite://"
_SECRETS_IN_CLEAR = ("http_token", "token", "auth_token", "zookeeper_auth", "passwords")


def readable_secrets(file: Path) -> Iterator[Finding]:
    """Warnings for files that a configuration file names, and for the file itself if it contains a secret."""
    try:
        content = read_file(file)
    except IncorrectParameterException:
        return  # that is a finding already
    named = {path for key, path in _values(content) if key in _KEYS and isinstance(path, str)}
    named.update(path for key, uri in _values(content) if key in _URIS for path in _named_by(uri))
    # An option of the provider bookgate-token.
    options = content.get("auth_options")
    if isinstance(options, Mapping) and isinstance(options.get("file"), str):
        named.add(options["file"])
    if any(key in _SECRETS_IN_CLEAR for key, _ in _values(content)):
        named.add(str(file))
    for path in sorted(named):
        if _others_read(Path(path)):
            what = "it holds a secret, and every user of this machine can read it"
            yield warning(f"file {path}", what, f"chmod o= {path}")


def _named_by(uri: object) -> Iterator[str]:
    """Secret files in the URI of gateways, or the embedded store, which has the passwords of ledgers."""
    if isinstance(uri, str) and uri.startswith(_EMBEDDED + "/"):
        yield uri.removeprefix(_EMBEDDED)
    if not isinstance(uri, str) or not is_gateway_uri(uri):
        return
    with suppress(IncorrectParameterException):  # that is a finding already
        gateways = parse_gateways(uri)
        files = (gateways.token_file, gateways.tls and gateways.tls.key)
        yield from (str(path) for path in files if path is not None)


def _values(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from _values(value)


def _others_read(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
