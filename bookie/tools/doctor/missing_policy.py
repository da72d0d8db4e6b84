"""Finds configurations that admit other machines without a policy, so that every admitted client may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bookgate.bookie.tools.configuration.check import part_of
from bookgate.bookie.tools.configuration.schema import CLIENT
from bookgate.bookie.tools.doctor.findings import Finding, warning
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.security.authenticators import is_loopback
from bookgate.runtime.settings_loader import gather, read_file


def missing_policy(file: Path) -> Iterator[Finding]:
    """A warning for a bookie or gateway without `security_policy`; the environment is included, as at a start."""
    try:
        content = read_file(file)
        part = part_of(content)
        given = gather(part.settings, content, str(file)).given
    except IncorrectParameterException:
        return  # reported elsewhere
    if part is CLIENT or "security_policy" in given:
        return
    host = given["host"].value if "host" in given else part.settings.model_fields["host"].default
    if isinstance(host, str) and not is_loopback(host):
        yield warning(
            f"file {file}",
            "it has no security_policy: whoever is let in, by whatever certificate or token, may read every ledger's "
            "password, delete ledgers and register as any bookie",
            "set security_policy; `bookgate security init` makes one to begin with (docs/security.md)",
        )
