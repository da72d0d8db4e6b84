"""Secret files that others can read."""

from __future__ import annotations

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
