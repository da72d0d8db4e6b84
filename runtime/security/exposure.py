"""Which ports other machines reach without anybody being authenticated. Pure.

A server whose ports are open in this sense refuses to start, unless its settings say `insecure = true`; doctor and
console tell it all the time then. A loopback address is never open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookgate.ledger.errors import IncorrectParameterException

ADVICE: Mapping[str, str] = {
    "entry": "tls_required with tls_require_client_cert, or auth_provider, for the entry port",
    "gateway": "tls_require_client_cert of the gateway, for gRPC",
    "http": "http_token_file, for HTTP",
}
"""What else than principals protects each door, by the door's name."""


def check_exposure(host: str, open_doors: Sequence[str], *, insecure: bool) -> None:
    """Refuses what nobody has said to want. Raises IncorrectParameterException that says what to do."""
    if not open_doors or insecure:
        return
    raise IncorrectParameterException(
        f"{host} can be reached from other machines, and nobody is authenticated at: {', '.join(open_doors)}. Set "
        f"security_tokens or security_jwt_keys, for all doors; or {'; '.join(ADVICE[door] for door in open_doors)}. On "
        "a network that only trusted people reach say insecure = true, or listen on 127.0.0.1. `bookgate security "
        "init` makes certificates, tokens and a policy to begin with"
    )


def insecure_text(open_doors: Sequence[str]) -> str:
    """What is told all the time where `insecure` was said."""
    return f"other machines reach it, and nobody is authenticated at: {', '.join(open_doors)} (insecure = true)"
