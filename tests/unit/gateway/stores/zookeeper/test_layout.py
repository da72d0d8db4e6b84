from __future__ import annotations

import pytest

from bookgate.gateway.stores.zookeeper.layout import FACTORY_CLASSES, encode_layout, manager_of_layout
from bookgate.ledger.errors import IncorrectParameterException
from tests.conformance.golden import rows


@pytest.mark.parametrize("row", rows("misc.jsonl", "layout"), ids=lambda row: row["factory"].rpartition(".")[2])
def test_layout_bytes_are_those_of_java(row: dict[str, str]) -> None:
    manager = next(name for name, factory_class in FACTORY_CLASSES.items() if factory_class == row["factory"])
    assert encode_layout(manager).hex() == row["hex"]
    assert manager_of_layout(bytes.fromhex(row["hex"]), manager, "/l/LAYOUT") == manager


def test_old_layout_has_a_short_name() -> None:
    assert manager_of_layout(b"1\nflat:1", None, "/l/LAYOUT") == "flat"


def test_another_manager_than_configured_is_refused_saying_which() -> None:
    with pytest.raises(IncorrectParameterException, match=r"/l/LAYOUT.*'flat'.*'hierarchical'"):
        manager_of_layout(encode_layout("flat"), "hierarchical", "/l/LAYOUT")


@pytest.mark.parametrize(
    "content",
    [b"", b"2", b"3\nflat:1", b"2\na:b:1", b"2\norg.example.Factory:1", encode_layout("flat")[:-1] + b"2", b"1\nodd:1"],
)
def test_unreadable_layout_is_refused(content: bytes) -> None:
    with pytest.raises(IncorrectParameterException, match="/l/LAYOUT"):
        manager_of_layout(content, None, "/l/LAYOUT")
