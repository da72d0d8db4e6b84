"""Marks, locks and votes have BookKeeper's bytes and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.protobuf_text import top_level_fields
from bookgate.ledger.replication import (
    LAYOUT,
    PeriodicCheck,
    UnderreplicatedLedger,
    check_layout,
    decode_lock,
    decode_vote,
    encode_lock,
    encode_vote,
    ledger_id_of_mark,
    mark_directories,
    mark_name,
)

TWO_REPLICAS = b'replica: "192.0.2.1:3181"\nreplica: "192.0.2.2:3181"\nctime: 1700000000000\n'

GOLDEN_MARKS = [
    (UnderreplicatedLedger(7, ("192.0.2.1:3181", "192.0.2.2:3181"), 1_700_000_000_000), TWO_REPLICAS),
    (UnderreplicatedLedger(7, (), 1_700_000_000_000), b"ctime: 1700000000000\n"),
    (UnderreplicatedLedger(7, ()), b""),
]

PATHS = [
    (123, "0000/0000/0000/007b/urL0000000123"),
    (2147483647, "0000/0000/7fff/ffff/urL2147483647"),
    (4294967296, "0000/0001/0000/0000/urL4294967296"),
    (2**63 - 1, "7fff/ffff/ffff/ffff/urL9223372036854775807"),
]


class TestMarks:
    @pytest.mark.parametrize(("mark", "content"), GOLDEN_MARKS)
    def test_golden_bytes(self, mark: UnderreplicatedLedger, content: bytes) -> None:
        assert mark.encode() == content
        assert UnderreplicatedLedger.decode(7, content) == mark

    @pytest.mark.parametrize(("ledger_id", "path"), PATHS)
    def test_names(self, ledger_id: int, path: str) -> None:
        assert "/".join((*mark_directories(ledger_id), mark_name(ledger_id))) == path
        assert ledger_id_of_mark(path.rpartition("/")[2]) == ledger_id

    @pytest.mark.parametrize(
        "name", ["urL123", "ur0000000123", "urL0000000123x", "L0000000123", "urL9223372036854775808"]
    )
    def test_other_names_are_no_marks(self, name: str) -> None:
        assert ledger_id_of_mark(name) is None

    def test_ids_that_no_mark_can_carry_are_refused(self) -> None:
        for ledger_id in (-1, 2**63, 2**64 - 1, 2**128):
            with pytest.raises(IncorrectParameterException):
                mark_name(ledger_id)
            with pytest.raises(IncorrectParameterException):
                UnderreplicatedLedger(ledger_id)

    def test_a_ledger_with_a_scope_has_names_that_no_other_ledger_has(self) -> None:
        number = LedgerId(1, -2).number
        assert mark_name(number) == "urL0000000000000001fffffffffffffffe"
        assert "/".join(mark_directories(number)) == "0000/0000/0000/0001/ffff/ffff/ffff/fffe"
        assert ledger_id_of_mark(mark_name(number)) == number
        for other in ("urL00000000000000000000000000000005", "urL0000000000000001FFFFFFFFFFFFFFFE", "urL1" + "0" * 19):
            assert ledger_id_of_mark(other) is None

    def test_more_replicas_come_last_and_the_first_time_stays(self) -> None:
        mark = UnderreplicatedLedger(7, ("a:1",), 5).with_replicas(["b:1", "a:1"], 9)
        assert (mark.replicas, mark.ctime_ms) == (("a:1", "b:1"), 5)
        assert UnderreplicatedLedger(7).with_replicas([], 9).ctime_ms == 9

    def test_a_mark_names_as_many_replicas_as_fit(self) -> None:
        """Those that it names already stay, however many other software has written."""
        mark = UnderreplicatedLedger(7).with_replicas([f"b-{number}:1" for number in range(100_000)], None)
        assert 3000 < len(mark.replicas) < 4000
        assert len(mark.encode()) <= 64 * 1024
        assert mark.with_replicas(["later:1"], None) == mark
        stored = UnderreplicatedLedger(7, tuple(f"b-{number}:1" for number in range(10_000)))
        assert stored.with_replicas(["later:1"], None) == stored

    def test_unknown_fields_are_kept(self) -> None:
        """Of a later version: of every shape that the text form has, between known ones."""
        unknown = ['later: "a \\" { b"', "nested {\n  replica: 3\n  x { }\n}", "one < y: 1 >", "list: [1, 2]", "e: X"]
        content = (
            f'{unknown[0]}\nreplica: "a:1" {unknown[1]} # note\n{unknown[2]}; ctime: 4 {unknown[3]} {unknown[4]}\n'
        )
        mark = UnderreplicatedLedger.decode(7, content.encode())
        assert (mark.replicas, mark.ctime_ms, mark.unknown_fields) == (("a:1",), 4, tuple(unknown))
        again = mark.with_replicas(["b:1"], None)
        assert again.encode().startswith(b'replica: "a:1"\nreplica: "b:1"\nctime: 4\nlater: ')
        assert UnderreplicatedLedger.decode(7, again.encode()) == again

    @pytest.mark.parametrize("content", [b"replica: 5\n", b"ctime: x\n", b'replica: "a', b"\xff", b"x {\n", b"ctime"])
    def test_damaged_mark_is_a_mark_that_names_nobody_and_keeps_its_bytes(self, content: bytes) -> None:
        mark = UnderreplicatedLedger.decode(77, content)
        assert (mark.replicas, mark.ctime_ms, mark.damaged) == ((), None, content)
        assert mark.with_replicas(["a:1"], 5).encode() == content

    @given(st.lists(st.text(max_size=20), max_size=4, unique=True), st.none() | st.integers(-(2**63), 2**63 - 1))
    def test_what_is_written_is_read(self, replicas: list[str], ctime: int | None) -> None:
        mark = UnderreplicatedLedger(1, tuple(replicas), ctime)
        assert UnderreplicatedLedger.decode(1, mark.encode()) == mark

    def test_fields_of_text_are_split_without_their_separators(self) -> None:
        assert list(top_level_fields("a: 1, b: 'x' \"y\" ; c {}")) == [
            ("a", "a: 1"),
            ("b", "b: 'x' \"y\""),
            ("c", "c {}"),
        ]


class TestOthers:
    def test_golden_lock_and_vote(self) -> None:
        assert encode_lock("worker7.example.org") == b'bookieId: "worker7.example.org"\n'
        assert decode_lock(b'bookieId: "worker7.example.org"\n') == "worker7.example.org"
        assert decode_lock(b"") == ""
        assert encode_vote("192.0.2.9:3181") == b'bookieId: "192.0.2.9:3181"\n'
        assert decode_vote(b'bookieId: "192.0.2.9:3181"\n') == "192.0.2.9:3181"

    @pytest.mark.parametrize("check", PeriodicCheck)
    def test_golden_time_of_a_check(self, check: PeriodicCheck) -> None:
        golden = bytes.fromhex("0880d095ffbc31")
        assert check.encode(1_700_000_000_000) == golden
        assert check.decode(golden) == 1_700_000_000_000
        assert check.decode(b"") is None
        with pytest.raises(MetadataFormatException):
            check.decode(b"\x08")

    def test_layout(self) -> None:
        check_layout(LAYOUT)
        for other in (b'type: "BASIC"\nversion: 2\n', b'type: "OTHER"\nversion: 1\n', b"", b"nonsense"):
            with pytest.raises(MetadataFormatException):
                check_layout(other)
