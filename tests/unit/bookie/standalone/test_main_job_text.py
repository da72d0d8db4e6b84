"""Which files the main job takes, how they become lines, and the plain count, on made-up directories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.bookie.standalone.main_job.text import (
    InputError,
    Rules,
    TextSource,
    TextStatistics,
    differences,
    lines_of,
    plain_statistics,
    select_text,
    standard_library,
)


def write(path: Path, content: bytes = b"a line\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(root: Path, rules: Rules | None = None) -> dict[str, list[str]]:
    return {
        source.name: [str(path.relative_to(root)) for path in source.files]
        for source in select_text(root, rules).sources
    }


def test_one_ledger_a_top_level_name_with_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/m/n.txt", "a/b.txt", "empty/sub/.keep/.."):
        if name.endswith(".txt"):
            write(tmp_path / name)
    (tmp_path / "hollow").mkdir()
    assert names(tmp_path) == {"a": ["a/b.txt", "a/m/n.txt", "a/z.txt"], "b.txt": ["b.txt"]}


def test_binary_and_unreadable_files_are_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "text")
    write(tmp_path / "binary", b"x" * 100 + b"\0")
    write(tmp_path / "late", b"x" * 8192 + b"\0")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    selection = select_text(tmp_path)
    assert [source.name for source in selection.sources] == ["late", "text"]
    assert (selection.binary, selection.unreadable, selection.files) == (1, 2, 2)
    assert selection.size == 8193 + 7


def test_a_file_that_may_not_be_read_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "open")
    locked = write(tmp_path / "locked")
    real_open = Path.open

    def refuse(path: Path, mode: str) -> IO[Any]:
        if path == locked:
            raise PermissionError(13, "not yours")
        return real_open(path, mode)

    monkeypatch.setattr(Path, "open", refuse)
    selection = select_text(tmp_path)
    assert [source.name for source in selection.sources] == ["open"]
    assert selection.unreadable == 1


def test_loops_of_links_end_and_no_directory_is_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.txt")
    (tmp_path / "a" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert names(tmp_path) == {"a": ["a/x.txt"]}


def test_rules_of_the_standard_library(tmp_path: Path) -> None:
    for name in ("os.py", "notes.txt", "json/__init__.py", "json/__pycache__/x.py", "site-packages/p/q.py"):
        write(tmp_path / name)
    root, rules = standard_library()
    assert (root / "os.py").is_file()
    assert names(tmp_path, rules) == {"json": ["json/__init__.py"], "os.py": ["os.py"]}


def test_pycache_is_left_out_of_any_input(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "__pycache__" / "b")
    assert names(tmp_path) == {"a": ["a"]}


def test_inputs_that_can_not_be_used_say_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        select_text(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a directory"):
        select_text(write(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no text files$"):
        select_text(tmp_path / "empty")
    write(tmp_path / "empty" / "b", b"\0")
    with pytest.raises(InputError, match=r"1 binary and 0 unreadable"):
        select_text(tmp_path / "empty")


def source(tmp_path: Path, *contents: bytes) -> TextSource:
    return TextSource("s", tuple(write(tmp_path / f"f{n}", content) for n, content in enumerate(contents)))


def test_lines_lose_their_newline_and_nothing_else(tmp_path: Path) -> None:
    text = source(tmp_path, b"a\r\n\n \xff\x00 b\nlast", b"", b"next\n")
    assert list(lines_of(text, 100)) == [b"a\r", b"", b" \xff\x00 b", b"last", b"next"]


def test_a_line_over_the_limit_names_file_and_line(tmp_path: Path) -> None:
    text = source(tmp_path, b"12345\n12345", b"12345\n123456\n")
    with pytest.raises(InputError, match=r"f1, line 2: longer than 5 bytes"):
        list(lines_of(text, 5))
    assert list(lines_of(source(tmp_path, b"12345\n12345"), 5)) == [b"12345", b"12345"]


def test_plain_census_by_hand(tmp_path: Path) -> None:
    text = source(tmp_path, b"to be or\tnot to be\r\n\n  \xffbe \x0b\x0cbe\x1c\x85\n", b"", b"no newline")
    expected = TextStatistics(entries=4, bytes=19 + 0 + 12 + 10, distinct_words=8, longest_line=19)
    assert plain_statistics(text) == expected


def test_plain_census_of_nothing(tmp_path: Path) -> None:
    assert plain_statistics(source(tmp_path, b"")) == TextStatistics()


@given(st.lists(st.binary(max_size=60) | st.text("ab \t\r\n", max_size=60).map(str.encode), max_size=4))
def test_plain_census_agrees_with_the_lines(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    text = source(tmp_path_factory.mktemp("lines"), *contents)
    lines = list(lines_of(text, 1000))
    assert plain_statistics(text) == TextStatistics(
        len(lines),
        sum(map(len, lines)),
        len({word for line in lines for word in line.split()}),
        max(map(len, lines), default=0),
    )


def test_differences_are_named() -> None:
    statistics = TextStatistics(1, 2, 3, 4)
    assert differences(statistics, statistics) == ""
    assert differences(statistics, TextStatistics(1, 2, 3000, 5)) == (
        "distinct words 3,000 in Spark, 3 in the files; longest line 5 in Spark, 4 in the files"
    )
    assert "missing" in differences(statistics, None)
