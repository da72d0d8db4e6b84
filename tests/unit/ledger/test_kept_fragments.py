"""Fragments that are kept, so that ledgers of a listing share them."""

from __future__ import annotations

import pytest

from bookgate.ledger import metadata_codec
from bookgate.ledger.metadata import Fragment, LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode


def _read(*ensemble: str) -> Fragment:
    return decode(encode(LedgerMetadata.new(ensemble, 1, 1))).last_fragment


def test_ledgers_share_their_fragments() -> None:
    assert _read("bookie-1:3181", "bookie-2:3181") is _read("bookie-1:3181", "bookie-2:3181")


@pytest.mark.parametrize("ensemble", [[f"b{number}" for number in range(2000)], ["b" * 5000]])
def test_nothing_is_kept_of_ensembles_of_any_size(ensemble: list[str]) -> None:
    """Any client can write such metadata, also those that are refused."""
    before = dict(metadata_codec._fragments)
    assert _read(*ensemble) == Fragment(0, tuple(ensemble))
    assert metadata_codec._fragments == before


def test_so_many_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_codec, "_FRAGMENTS_KEPT", 10)
    for number in range(100):
        assert _read(f"bookie-{number}:3181").ensemble == (f"bookie-{number}:3181",)
        assert len(metadata_codec._fragments) <= 10
