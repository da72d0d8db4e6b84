"""As whom the job `orphans` asks bookies for the ledgers that they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.jobs.held_ledgers_table import admin_as

HTTPS = "https://bookie-1:8080"


@pytest.mark.parametrize(
    ("url", "provider", "shown"),
    [
        (HTTPS, "bookgate-token", "planted-token"),
        ("http://127.0.0.1:8080", "bookgate-token", "planted-token"),
        # Nobody may read it on the way.
        ("http://bookie-1:8080", "bookgate-token", None),
        # Without principals a bookie may take it for a wrong token of its own.
        (HTTPS, None, None),
    ],
)
def test_a_bookie_is_shown_the_token_that_it_knows(
    url: str, provider: str | None, shown: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("planted-token\n")
    config = ClientConfig(gateways="grpc://g:1", token_file=file, auth_provider=provider, tls_ca=tmp_path / "ca.crt")
    admin = admin_as(config, url)
    assert (admin.url, admin.token, admin.authorities) == (url, shown, tmp_path / "ca.crt")
