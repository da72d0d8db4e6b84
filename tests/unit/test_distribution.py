"""The tests of one Spark session stay in one process."""

from __future__ import annotations

from pathlib import Path

from tests.distribution import OF_THEIR_OWN, ONE_SESSION, TogetherScheduling, scope_of

ROOT = Path(__file__).parents[2]
_FIXTURES = ("spark: SparkSession", "tables: Tables", "streams: Streams")


def _files() -> set[str]:
    return {path.name for path in (ROOT / ONE_SESSION).glob("test_*.py")}


def test_files_of_the_one_session_are_handed_out_as_one_and_others_by_file() -> None:
    handed_out = {name: scope_of(f"{ONE_SESSION}/{name}::TestIt::test_it[a::b]") for name in _files()}
    assert {name for name, scope in handed_out.items() if scope == ONE_SESSION} == _files() - OF_THEIR_OWN
    assert {handed_out[name] for name in OF_THEIR_OWN} == {f"{ONE_SESSION}/{name}" for name in OF_THEIR_OWN}
    other = "tests/unit/thinclient/spark/test_arrow.py"
    assert scope_of(f"{other}::test_it") == other
    assert TogetherScheduling._split_scope(None, f"{ONE_SESSION}/test_sink.py::test_it") == ONE_SESSION  # type: ignore[arg-type]


def test_each_file_of_its_own_exists_and_needs_the_session_for_long_tests_only() -> None:
    assert _files() >= OF_THEIR_OWN
    for name in OF_THEIR_OWN:
        tests = (ROOT / ONE_SESSION / name).read_text().split("\n\n\n")
        assert not [
            test[:80]
            for test in tests
            if "def test_" in test and any(each in test for each in _FIXTURES) and "@pytest.mark.long" not in test
        ]
