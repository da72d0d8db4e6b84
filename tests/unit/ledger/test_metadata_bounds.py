"""What metadata may be stored anew, and that what is stored beyond a bound can be written on."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from bookgate.ledger.bookie_info import MOST_ID_CHARACTERS, check_bookie_id, check_length, check_stored_bookie_id
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_bounds import MOST_TEXT_BYTES, faults, require_no_faults, require_no_new_faults
from bookgate.ledger.metadata_codec import encode, without_password
from bookgate.ledger.terms import Terms

MOST = 1024 * 1024 - 1024


def metadata(
    bookies: int = 3, write_quorum: int = 2, *, password: bytes | None = b"", **custom: bytes
) -> LedgerMetadata:
    made = LedgerMetadata.new([f"b{number}" for number in range(bookies)], write_quorum, 1, custom_metadata=custom)
    return without_password(
        replace(made, password=password, digest_type=None if password is None else made.digest_type)
    )


@pytest.mark.parametrize(
    ("wanted", "broken"),
    [
        (metadata(), []),
        (metadata(1024, 16), []),
        (metadata(1025, 2), ["ensemble"]),
        (metadata(1024, 17), ["write-sets"]),
        (metadata(128, 128), []),
        (metadata(x=b"\xff" * 900_000), []),
        (metadata(x=b"\xff" * 600_000, password=b"p" * 600_000), ["bytes"]),
        (metadata(password=None, x=b"\xff" * 16_000), []),
        (metadata(password=None, x=b"\xff" * 17_000), ["text"]),
        (metadata(password=None, x=b"\xff" * 300_000), ["text"]),
        (metadata(password=None, x=b"x" * 1_100_000), ["text", "bytes"]),
        (metadata(700, 1, password=None), []),
    ],
)
def test_what_breaks_a_bound_is_told(wanted: LedgerMetadata, broken: list[str]) -> None:
    assert list(faults(wanted, MOST)) == broken
    if broken:
        with pytest.raises(IncorrectParameterException):
            require_no_faults(wanted, MOST)
    else:
        require_no_faults(wanted, MOST)


def test_text_that_is_too_large_anyhow_is_refused_at_once() -> None:
    """What anybody may send must not stop the event loop."""
    wanted = metadata(250_000, 2, password=None, x=b"y")
    began = time.process_time()
    assert list(faults(wanted, MOST)) == ["ensemble", "write-sets", "text", "bytes"]
    assert time.process_time() - began < 0.4


def test_what_stays_within_the_bounds_fits_into_a_request_of_zookeeper() -> None:
    """With a path and a header besides."""
    largest = metadata(x=b"x" * (MOST + 512 - len(encode(metadata(x=b"x" * 100_000))) + 100_000))
    assert not faults(largest, MOST)
    assert len(encode(largest)) == MOST + 512 < 0xFFFFF - 500


def test_an_unbounded_ledger_is_measured_as_it_is_stored() -> None:
    """Its bookies stand in it once, however many fragments they have."""
    ensemble = [f"bookie-{number}.{'example' * 20}.org:3181" for number in range(3)]
    ledger = replace(LedgerMetadata.new(ensemble, 2, 2), terms=Terms())
    fragments = [replace(ledger.last_fragment, first_entry_id=number) for number in range(5000)]
    assert not faults(replace(ledger, fragments=tuple(fragments)), MOST)


def test_a_bound_that_the_stored_ledger_breaks_may_go_on_being_broken() -> None:
    stored = replace(metadata(2000, 20), format_version=2)
    assert len(encode(stored)) < MOST_TEXT_BYTES
    require_no_new_faults(stored.begin_recovery().close(9, 90), stored, MOST)
    with pytest.raises(IncorrectParameterException, match="format version 2"):
        require_no_new_faults(replace(stored, custom_metadata={"x": b"x" * 2 * MOST_TEXT_BYTES}), stored, MOST)
    with pytest.raises(IncorrectParameterException, match="ensemble size"):
        require_no_new_faults(stored, metadata(), MOST)


def test_the_largest_ledger_as_text_that_is_created_can_be_recovered_repaired_and_closed() -> None:
    created = replace(LedgerMetadata.new(["b-1", "b-2"], 2, 2), format_version=2)
    rest = MOST_TEXT_BYTES - len(encode(replace(created, custom_metadata={"x": b"y"}))) + 1
    created = replace(created, custom_metadata={"x": b"y" * rest})
    assert len(encode(created)) == MOST_TEXT_BYTES
    require_no_faults(created, MOST)
    changed = created.with_ensemble(5, ["b-3", "b-2"]).begin_recovery().with_ensemble(9, ["b-3", "b-4"]).close(9, 900)
    require_no_new_faults(changed, created, MOST)


def test_a_ledger_as_text_that_has_grown_by_fragments_can_still_be_closed() -> None:
    """However many: only custom metadata are bounded, and the whole, as of any ledger."""
    stored = replace(LedgerMetadata.new(["b-1", "b-2"], 2, 2), format_version=2)
    for number in range(1, 3_000):
        stored = stored.with_ensemble(number, [f"b-{number}", f"b-{number + 1}"])
    assert len(encode(stored)) > 2 * MOST_TEXT_BYTES
    require_no_new_faults(stored, replace(stored, fragments=stored.fragments[:-1]), MOST)
    room = len(encode(stored)) - 512
    for most in range(room, room + 40):
        require_no_new_faults(stored.begin_recovery().close(10**15, 10**18), stored, most)
    with pytest.raises(IncorrectParameterException, match="more than"):
        require_no_new_faults(stored, replace(stored, fragments=stored.fragments[:9]), room - 9)
    with pytest.raises(IncorrectParameterException, match="custom metadata take"):
        require_no_new_faults(replace(stored, custom_metadata={"x": b"x" * 2 * MOST_TEXT_BYTES}), stored, MOST)


def test_an_id_that_the_stored_ledger_has_may_stay() -> None:
    stored = LedgerMetadata.new(["a b", "b" * 400], 1, 1)
    require_no_new_faults(stored.begin_recovery(), stored, MOST)
    with pytest.raises(IncorrectParameterException, match="400 characters"):
        require_no_new_faults(stored, LedgerMetadata.new(["a b", "b"], 1, 1), MOST)


def test_a_bookie_id_is_no_longer_than_an_address() -> None:
    longest = "h" * 253 + ":65535"
    assert check_bookie_id(longest) == longest
    assert check_length(longest, "a name") == longest
    assert len(longest) == MOST_ID_CHARACTERS
    with pytest.raises(IncorrectParameterException) as refused:
        check_bookie_id("b" * (1 << 20))
    assert len(str(refused.value)) < 200
    stored = "a@b[1]\\^" + "b" * 400
    assert check_stored_bookie_id(stored) == stored
    for wrong in ("", "readonly/h:1", "ReadOnly", "b" * 5000, "é"):
        with pytest.raises(IncorrectParameterException):
            check_stored_bookie_id(wrong)
    with pytest.raises(IncorrectParameterException, match="a name has 260 characters"):
        check_length("n" * 260, "a name")
