"""The bookie's own client where its gateway withholds passwords: it says so, and opens nothing with an empty one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookgate.bookie.http.client_routes import OwnClient
from bookgate.gateway.http.caller import ANYBODY
from bookgate.gateway.http.errors import HttpError
from bookgate.gateway.http.routes.ledgers import LedgerQuery
from bookgate.ledger.errors import UnauthorizedAccessException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.password_check import SALT_BYTES, PasswordCheck
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.spark.options.read_options import Options, Table

WITHHELD = replace(
    LedgerMetadata.new(["bookie-1"], 1, 1, password=b""),
    password_check=PasswordCheck.of(b"secret", bytes(SALT_BYTES)),
)


class _Ledgers:
    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        return LedgerRecord(ledger_id, WITHHELD, 3)


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["open", "recover"])
async def test_the_route_says_whose_permission_is_missing(what: str) -> None:
    parts = {"service_discovery": None, "catch_up": lambda revision: None}
    factory = cast(Any, SimpleNamespace(ledger_manager=_Ledgers(), **parts))
    own = OwnClient(factory, "bookie-1", ClientConfig)
    try:
        with pytest.raises(HttpError, match=r"ledger 7: give the bookie's principal the action ledger\.secret") as told:
            await getattr(own, what)(LedgerQuery(ledger_id=7, ledger_scope_id=0), ANYBODY)
        assert told.value.status == 503
    finally:
        await own.close()


def test_spark_names_the_action_where_passwords_are_to_be_those_of_the_metadata() -> None:
    options = Options("grpc://gateway", Table.LEDGERS, passwords_from_metadata=True)
    with pytest.raises(UnauthorizedAccessException, match=r"needs the action ledger\.secret"):
        options.password_of(LedgerRecord(LedgerId(0, 7), WITHHELD, 3))
