"""Servers that let whoever is let in do everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.bookie.tools.doctor.missing_policy import missing_policy

_BOOKIE = 'metadata_uri = "sqlite:///m"\nbookie_id = "b"\ndata_dir = "/d"\ntls_required = true\n'
_GATEWAY = 'metadata_uri = "sqlite:///m"\nworkers = 2\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_BOOKIE + 'tls_client_ca = "ca.crt"\ntls_require_client_cert = true\n', True),
        (_BOOKIE + 'security_tokens = "tokens"\n', True),
        (_BOOKIE + 'security_policy = "policy.toml"\n', False),
        (_BOOKIE + 'host = "127.0.0.1"\n', False),
        (_GATEWAY + 'host = "0.0.0.0"\n', True),
        (_GATEWAY, False),
        ('gateways = "grpc://h:4181"\nbookie_tls = "start-tls"\n', False),
        ("no settings", False),
    ],
)
def test_a_server_without_a_policy_that_others_reach_is_told(text: str, told: bool, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    assert [each.subject for each in missing_policy(file)] == [f"file {file}"] * told


def test_a_policy_in_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKGATE_BOOKIE_SECURITY_POLICY", "policy.toml")
    (file := tmp_path / "bookie.toml").write_text(_BOOKIE)
    assert list(missing_policy(file)) == []
