"""A directory with everything that a secured cluster needs, for a trial: see docs/security.md#in-ten-minutes.

Files with secrets are readable by their owner only, from their first byte on. Existing files stay: a second run creates
what is missing, such as the certificate of another bookie, with the same authority.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from bookgate.bookie.tools.trial_security.certificates import Authority
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.decision import Resource, decide
from bookgate.runtime.security.policy import parse_policy
from bookgate.runtime.security.principal import Kind, Principal
from bookgate.runtime.security.static_tokens import new_token

TOKENS = ("operator", "writer", "reader", "prometheus")

_POLICY = """\
# Who may do what: docs/security.md#policy. Servers read this file anew when it changes; check it with
# `bookgate policy check`.

# Everything, the console included.
[[bindings]]
principals = ["token:operator"]
role = "admin"

# Ledgers of its own: creates, writes, reads, deletes them.
[[bindings]]
principals = ["token:writer"]
role = "writer"
owned = true
[[bindings]]
principals = ["token:writer"]
role = "finder"

# Reads all ledgers.
[[bindings]]
principals = ["token:reader"]
role = "reader"

# Metrics, and nothing else that HTTP does not show with them.
[[bindings]]
principals = ["token:prometheus"]
role = "scraper"

# Each bookie by its certificate, or by its token at gateways: registers under its own name, and repairs what others
# have lost.
[[bindings]]
principals = [{bookies}]
role = "bookie"
bookies = ["{{name}}"]
# Its own test (GET /api/v1/bookie/sanity) adds entries.
[[bindings]]
principals = [{bookies}]
role = "tester"

[roles.finder]
actions = ["discovery.read"]
[roles.scraper]
actions = ["http.read"]
[roles.tester]
actions = ["entry.add"]
"""

_BOOKIE = """\
# Security of {name}; the rest of its settings are its own. Where it is a client of gateways elsewhere:
# metadata_uri = "grpcs://HOST:4181?ca={directory}/ca.crt&token_file={directory}/bookies/{name}.token"
tls_cert = "{directory}/bookies/{name}.crt"
tls_key = "{directory}/bookies/{name}.key"
tls_client_ca = "{directory}/ca.crt"
tls_required = true
http_tls = true
security_tokens = "{directory}/tokens"
security_policy = "{directory}/policy.toml"

[gateway]
tls_cert = "{directory}/bookies/{name}.crt"
tls_key = "{directory}/bookies/{name}.key"

# As a client of the other bookies, for auto-recovery and the console.
[client]
bookie_tls = "start-tls"
bookie_tls_ca = "{directory}/ca.crt"
bookie_tls_cert = "{directory}/bookies/{name}.crt"
bookie_tls_key = "{directory}/bookies/{name}.key"
"""

_CLIENT = """\
# A client of the cluster: BOOKGATE_TOKEN_FILE names another token.
tls_ca = "{directory}/ca.crt"
bookie_tls = "start-tls"
bookie_tls_ca = "{directory}/ca.crt"
token_file = "{directory}/writer.token"
auth_provider = "bookgate-token"
"""


def make(directory: Path, bookies: Sequence[str], hosts: Sequence[str]) -> list[Path]:
    """Creates the missing files.

    Args:
        directory: Where the files are.
        bookies: Bookie ids.
        hosts: Hosts of bookies on other machines.

    Returns:
        The files that were created.

    Raises:
        OSError: A file can't be written.
        ValueError: The authority is not one of these, or its key is needed and was removed.
    """
    directory = directory.absolute()
    folder = directory / "bookies"
    folder.mkdir(0o700, parents=True, exist_ok=True)
    made: list[Path] = []

    def write(path: Path, content: bytes, mode: int = 0o600) -> None:
        if not path.exists():
            _put(path, content, mode)
            made.append(path)

    def write_pair(path: Path, key: bytes, certificate: bytes) -> None:
        """The certificate last: a pair without it is made anew, the key with it."""
        _put(path.with_suffix(".key"), key, 0o600)
        _put(path.with_suffix(".crt"), certificate, 0o644)
        made.extend((path.with_suffix(".key"), path.with_suffix(".crt")))

    authority = _authority(directory)
    if authority is not None:
        write(directory / "ca.key", authority.key)
        write(directory / "ca.crt", authority.certificate, 0o644)
    every_host = list(dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts)))
    for name in bookies:
        if not (folder / f"{name}.crt").exists():
            if authority is None:
                raise ValueError(
                    f"ca.key is not there any more, and {name} has no certificate: bring it back for this run"
                )
            certificate, key = authority.issue(name, [*every_host, *([name] if _is_host(name) else [])])
            write_pair(folder / f"{name}.crt", key, certificate)
        write(folder / f"{name}.toml", _BOOKIE.format(directory=directory, name=name).encode(), 0o644)
    if not (directory / "tokens").exists():
        write(directory / "tokens", b"")
    for path in [*(directory / f"{name}.token" for name in TOKENS), *(folder / f"{name}.token" for name in bookies)]:
        if not path.exists():
            token, line = new_token(path.stem)
            # The servers' line first: a token that no server knows would stay so.
            _put(directory / "tokens", (directory / "tokens").read_bytes() + line.encode() + b"\n", 0o600)
            write(path, token.encode() + b"\n")
    write(directory / "policy.toml", _POLICY.format(bookies=_principals(bookies)).encode(), 0o644)
    write(directory / "client.toml", _CLIENT.format(directory=directory).encode(), 0o644)
    return made


def not_bound(directory: Path, bookies: Sequence[str]) -> list[str]:
    """The principals of these bookies that the directory's policy does not let register: it stays as it was made, for
    other bookies, or as somebody has changed it.

    Raises:
        OSError: The policy can't be read.
        PolicyError: The policy is wrong.
    """
    policy = parse_policy((directory / "policy.toml").read_text())
    return [
        str(principal)
        for name in bookies
        for principal in (Principal(Kind.TLS, f"CN={name}"), Principal(Kind.TOKEN, name))
        if not decide(policy, principal, Action.BOOKIE_REGISTER, Resource(bookie_id=name))
    ]


def _put(path: Path, content: bytes, mode: int) -> None:
    """The whole file or, if this is interrupted, none of it; what another run left of a file is replaced."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    unfinished.replace(path)


def _principals(bookies: Sequence[str]) -> str:
    """The bookies' principals for the policy, including those of later bookies if their ids have the usual form."""
    patterns = ["*bookie-*", *(name for name in bookies if "bookie-" not in name)]
    return ", ".join(f'"{kind}{pattern}"' for pattern in patterns for kind in ("tls:CN=", "token:"))


def _authority(directory: Path) -> Authority | None:
    """The authority; None if its key was removed, as it should be once all certificates exist."""
    certificate, key = directory / "ca.crt", directory / "ca.key"
    if not certificate.exists():
        return Authority(key=key.read_bytes() if key.exists() else None)
    return Authority(certificate.read_bytes(), key.read_bytes()) if key.exists() else None


def _is_host(name: str) -> bool:
    return name.replace("-", "").replace(".", "").isalnum()
