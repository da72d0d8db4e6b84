"""The directory that `bookgate security init` makes, made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookgate.bookie.tools.trial_security.files import make


def test_without_the_authoritys_key_what_is_there_stays_and_nothing_is_signed_anew(tmp_path: Path) -> None:
    make(tmp_path, ["bookie-1"], [])
    authority = (tmp_path / "ca.crt").read_bytes()
    (tmp_path / "ca.key").unlink()
    assert make(tmp_path, ["bookie-1"], []) == []
    with pytest.raises(ValueError, match=r"ca.key is not there any more, and bookie-2 has no certificate"):
        make(tmp_path, ["bookie-1", "bookie-2"], [])
    assert not (tmp_path / "ca.key").exists()
    assert (tmp_path / "ca.crt").read_bytes() == authority
