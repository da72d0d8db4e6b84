"""Cookies: BookKeeper's bytes, and when a start is refused (S4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bookgate.bookie.membership.cookie import Cookie, InvalidCookieException, StartDecision, check
from tests.conformance import golden

J, L = Path("/data/journal"), Path("/data/ledgers")
MASTER = Cookie.build("127.0.0.1:3181", [J], [L], "instance")
STORED = MASTER.encode()
NOTHING: dict[Path, bytes | None] = {J: None, L: None}
STAMPED: dict[Path, bytes | None] = {J: STORED, L: STORED}


@pytest.mark.parametrize("row", golden.rows("misc.jsonl", "cookie"))
def test_golden_cookies(row: dict[str, str | None]) -> None:
    ledgers = [Path(path) for path in str(row["ledgerDirs"]).split("\t")[1:]]
    index = [Path(path) for path in str(row["indexDirs"]).split("\t")[1:]] if row["indexDirs"] else []
    cookie = Cookie.build(str(row["bookieId"]), [Path(str(row["journalDirs"]))], ledgers, row["instanceId"], index)
    data = bytes.fromhex(str(row["hex"]))
    assert cookie.encode() == data
    assert Cookie.decode(data) == cookie


def test_version_3_is_three_lines() -> None:
    cookie = Cookie.decode(b"3\nhost:3181\n/j\n1\t/l\n")
    assert (cookie.bookie_id, cookie.journal_directories, cookie.ledger_directories) == ("host:3181", "/j", "1\t/l")
    assert cookie.instance_id is None


@pytest.mark.parametrize(
    "data", [b"", b"x\n", b"2\nhost\n/j\n1\t/l\n", b"3\nhost\n", b'5\nbookieHost: "a"\n', b"5\n}{", b"\xff\xfe"]
)
def test_what_is_no_cookie_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidCookieException):
        Cookie.decode(data)


def test_a_non_ascii_path_keeps_its_letters() -> None:
    cookie = Cookie.build("b", [Path("/d/ü")], [L], None)
    assert Cookie.decode(cookie.encode()) == cookie


def test_everything_matches() -> None:
    assert check(MASTER, STORED, STAMPED, ()) is StartDecision.OK


def test_absent_index_directories_mean_the_ledger_directories() -> None:
    same = Cookie.build("127.0.0.1:3181", [J], [L], "instance", [L]).encode()
    assert check(MASTER, same, STAMPED, ()) is StartDecision.OK


def test_a_new_bookie() -> None:
    assert check(MASTER, None, NOTHING, {J, L}) is StartDecision.NEW_ENVIRONMENT


def test_a_new_bookie_whose_stamping_was_interrupted() -> None:
    assert check(MASTER, None, {J: STORED, L: None}, {L}) is StartDecision.NEW_ENVIRONMENT


def test_a_first_start_cut_short_after_stamping_goes_on() -> None:
    assert check(MASTER, None, STAMPED, {J, L}) is StartDecision.NEW_ENVIRONMENT
    assert check(MASTER, None, {J: STORED, L: None}, {J, L}) is StartDecision.NEW_ENVIRONMENT
    with pytest.raises(InvalidCookieException, match="no cookie for it"):
        check(MASTER, None, STAMPED, {L})


def test_files_without_a_cookie_are_not_a_new_bookie() -> None:
    with pytest.raises(InvalidCookieException, match=r"/data/ledgers holds files"):
        check(MASTER, None, NOTHING, {J})


def test_a_directory_that_was_emptied_is_refused() -> None:
    with pytest.raises(InvalidCookieException, match=r"no cookie in /data/ledgers"):
        check(MASTER, STORED, {J: STORED, L: None}, {L})


def test_another_cluster_without_our_cookie_is_refused() -> None:
    with pytest.raises(InvalidCookieException, match="metadata store has no cookie"):
        check(MASTER, None, STAMPED, ())


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        (replace(MASTER, bookie_id="127.0.0.1:3182"), "bookie id"),
        (replace(MASTER, journal_directories="/other"), "journal directories"),
        (replace(MASTER, ledger_directories="1\t/other"), "ledger directories"),
        (replace(MASTER, index_directories="1\t/other"), "index directories"),
        (replace(MASTER, instance_id="other"), "instance id"),
        (replace(MASTER, instance_id=None), "instance id"),
    ],
)
def test_whatever_differs_is_named_with_the_place(stored: Cookie, what: str) -> None:
    with pytest.raises(InvalidCookieException, match=f"metadata store .*{what}"):
        check(MASTER, stored.encode(), STAMPED, ())
    with pytest.raises(InvalidCookieException, match=f"/data/journal .*{what}"):
        check(MASTER, STORED, {J: stored.encode(), L: STORED}, ())


L2, INDEX = Path("/data/ledgers2"), Path("/data/index")
LARGER = Cookie.build("127.0.0.1:3181", [J], [L, L2], "instance")


def test_new_empty_ledger_directories_may_join_where_allowed() -> None:
    found: dict[Path, bytes | None] = {**STAMPED, L2: None}
    assert check(LARGER, STORED, found, {L2}, allow_expansion=True) is StartDecision.EXPANSION
    with pytest.raises(InvalidCookieException, match="ledger directories"):
        check(LARGER, STORED, found, {L2})
    with pytest.raises(InvalidCookieException, match=r"no cookie in /data/ledgers2"):
        check(LARGER, STORED, found, set(), allow_expansion=True)


@pytest.mark.parametrize("stamped", [{L2}, {L2, L}, {J, L}, {J, L, L2}])
def test_an_expansion_that_was_cut_short_is_repeated(stamped: set[Path]) -> None:
    new = LARGER.encode()
    found = {path: new if path in stamped else STAMPED.get(path) for path in (J, L, L2)}
    assert check(LARGER, STORED, found, {L2}, allow_expansion=True) is StartDecision.EXPANSION
    assert check(LARGER, new, dict.fromkeys(found, new), (), allow_expansion=True) is StartDecision.OK


def test_a_directory_that_was_known_is_not_new() -> None:
    found: dict[Path, bytes | None] = {J: LARGER.encode(), L: LARGER.encode(), L2: None}
    with pytest.raises(InvalidCookieException, match=r"no cookie in /data/ledgers2"):
        check(LARGER, LARGER.encode(), found, {L2}, allow_expansion=True)
    with pytest.raises(InvalidCookieException, match=r"no cookie in /data/journal"):
        check(LARGER, STORED, {J: None, L: STORED, L2: None}, {J, L2}, allow_expansion=True)


def test_directories_never_become_fewer() -> None:
    with pytest.raises(InvalidCookieException, match="ledger directories"):
        check(MASTER, LARGER.encode(), STAMPED, (), allow_expansion=True)


def test_an_index_directory_of_its_own_is_no_expansion_of_the_ledger_directories() -> None:
    apart = Cookie.build("127.0.0.1:3181", [J], [L], "instance", [INDEX])
    with pytest.raises(InvalidCookieException, match="index directories"):
        check(apart, STORED, {**STAMPED, INDEX: None}, {INDEX}, allow_expansion=True)
