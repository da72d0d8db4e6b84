"""Secret files that others can read."""

from __future__ import annotations

import json
from pathlib import Path

from bookgate.bookie.tools.doctor.secret_files import readable_secrets


def test_secrets_that_others_can_read_are_told_with_a_way_out(tmp_path: Path) -> None:
    open_key, shut = tmp_path / "open.key", tmp_path / "shut"
    for file, mode in ((open_key, 0o644), (shut, 0o640)):
        file.write_text("secret")
        file.chmod(mode)
    config = tmp_path / "bookie.toml"
    config.write_text(
        f'http_token_file = "{shut}"\nsecurity_tokens = "{tmp_path}/missing"\n[gateway]\ntls_key = "{open_key}"\n'
    )
    config.chmod(0o644)
    (found,) = readable_secrets(config)
    assert (found.subject, found.advice) == (f"file {open_key}", f"chmod o= {open_key}")
    config.write_text('http_token = "in clear"\n')
    (found,) = readable_secrets(config)
    assert str(config) in found.subject
    assert list(readable_secrets(tmp_path / "nothing.toml")) == []


def test_files_that_a_uri_names_are_looked_at(tmp_path: Path) -> None:
    for name, mode in (("token", 0o644), ("key", 0o604), ("ca", 0o644), ("cert", 0o644), ("shut", 0o640)):
        (tmp_path / name).write_text("secret")
        (tmp_path / name).chmod(mode)
    query = "&".join(f"{key}={tmp_path}/{key.removesuffix('_file')}" for key in ("ca", "cert", "key", "token_file"))
    config = tmp_path / "bookie.toml"
    for key in ("metadata_uri", "gateways"):
        config.write_text(f'{key} = "grpcs://g:4181?{query}"\n')
        assert [each.subject for each in readable_secrets(config)] == [
            f"file {tmp_path}/key",
            f"file {tmp_path}/token",
        ]
    # The passwords of ledgers are in an embedded store.
    config.write_text(f'metadata_uri = "sqlite://{tmp_path}/token"\n')
    assert [each.advice for each in readable_secrets(config)] == [f"chmod o= {tmp_path}/token"]
    for uri in (
        f"grpcs://g:4181?token_file={tmp_path}/shut",
        f"sqlite://{tmp_path}/shut",
        "grpcs://g?token=x",
        "sqlite:///m?token_file=x",
        7,
    ):
        config.write_text(f"metadata_uri = {json.dumps(uri)}\n")
        assert list(readable_secrets(config)) == []
