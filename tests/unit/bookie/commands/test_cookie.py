"""Commands that delete cookies, beside bookies that are started meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from bookgate.bookie.commands import cookie, disk
from tests.stores import made
from tests.unit.bookie.commands.members import command, cookie_of, registered, write_cookies


def test_the_cookie_of_a_bookie_that_registers_while_the_question_stands_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = made(f"sqlite://{tmp_path}/metadata.db")
    asyncio.run(write_cookies(uri, "b"))
    data = tmp_path / "data"
    settings = (f"metadata_uri={uri}", "bookie_id=b", f"data_dir={data}")
    formatting = ("bookie", "format", "--delete-cookie", *(part for each in settings for part in ("--set", each)))
    for module, arguments in ((cookie, ("cookie", "delete", "b", "--metadata-uri", uri)), (disk, formatting)):
        with contextlib.ExitStack() as stack:

            def ask(_question: str, _yes: bool, stack: contextlib.ExitStack = stack) -> None:
                stack.enter_context(registered(uri, "b"))

            monkeypatch.setattr(module, "confirm", ask)
            result = command(*arguments)
        assert result.exit_code == 1, result.output
        assert "is registered (writable)" in result.stderr
        assert asyncio.run(cookie_of(uri, "b")) is not None
        monkeypatch.undo()
    assert command("cookie", "delete", "b", "--metadata-uri", uri, "--yes").exit_code == 0
    assert asyncio.run(cookie_of(uri, "b")) is None
