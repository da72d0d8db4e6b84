"""Which keys of custom metadata are the clients' own where a policy counts: all that this client and Spark write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookgate.gateway.services.ledger_access import owned_custom_metadata, to_be_written
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import OWNER_KEY, LedgerMetadata
from bookgate.ledger.payload_codec import CODEC_KEY
from bookgate.ledger.streams import CURSOR_KEY, CURSORS_KEY, NAME_KEY, SETTINGS_KEY, STREAM_KEY
from bookgate.thinclient.spark import commit_protocol as sink

CREATED = (
    CODEC_KEY,
    STREAM_KEY,
    NAME_KEY,
    SETTINGS_KEY,
    CURSORS_KEY,
    CURSOR_KEY,
    "bookgate.writer",
    "bookgate.adopted",
)
OF_SINKS = (sink.QUERY_KEY, sink.BATCH_KEY, sink.TASK_KEY, sink.CLAIMED_KEY, sink.COMMITTED_KEY)
CHANGED = (SETTINGS_KEY, CURSORS_KEY, CURSOR_KEY, "bookgate.writer", *OF_SINKS)


class Principal(SimpleNamespace):
    def __str__(self) -> str:
        return "token:anna"


ANNA: Any = SimpleNamespace(principal=Principal(is_authenticated=True))


def metadata(**custom: bytes) -> LedgerMetadata:
    return LedgerMetadata.new(["b:1"], 1, 1, custom_metadata=custom)


@pytest.mark.parametrize("key", [*CREATED, *OF_SINKS, "application"])
def test_clients_create_ledgers_with_their_keys(key: str) -> None:
    assert owned_custom_metadata(metadata(**{key: b"x"}), ANNA) == {key: b"x", OWNER_KEY: b"token:anna"}


@pytest.mark.parametrize("key", ["bookgate.other", "bookgate.sinks", "bookgate.", OWNER_KEY])
def test_other_keys_are_the_gateways(key: str) -> None:
    with pytest.raises(IncorrectParameterException, match="the gateway's"):
        owned_custom_metadata(metadata(**{key: b"token:ben"}), ANNA)
    with pytest.raises(IncorrectParameterException, match="the gateway's"):
        to_be_written(metadata(**{key: b"x"}), metadata(**{key: b"y"}))


@pytest.mark.parametrize("key", [*CHANGED, "application"])
def test_clients_change_their_keys(key: str) -> None:
    changed = to_be_written(metadata(**{key: b"x"}), metadata(**{key: b"y"}))
    assert changed.custom_metadata == {key: b"x"}


@pytest.mark.parametrize("key", [CODEC_KEY, STREAM_KEY, NAME_KEY, "bookgate.adopted"])
def test_what_a_ledger_is_stays(key: str) -> None:
    with pytest.raises(IncorrectParameterException, match="the gateway's"):
        to_be_written(metadata(), metadata(**{key: b"y"}))
