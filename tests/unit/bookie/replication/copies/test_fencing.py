"""The fence before a repair: what of a bookie's answers says that it holds."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import cast

import pytest

from bookgate.bookie.replication.copies.bookies import Bookies, TargetRefusesException
from bookgate.ledger.errors import BKException
from bookgate.ledger.wire.messages import LAST_ENTRY, Operation, ReadRequest, ReadResponse, Status
from bookgate.thinclient.bookies.pool import BookiePool
from bookgate.thinclient.config import ClientConfig
from tests.unit.bookie.replication.copies.test_copying import SECRETS

LAST = 12


class Pool:
    """A bookie that has a damaged copy of the last entry, or answers all alike."""

    def __init__(self, always: Status | None = None) -> None:
        self.next_txn_id = count(1).__next__
        self.asked: list[ReadRequest] = []
        self._always = always

    async def request(
        self, _bookie_id: str, _operation: Operation, request: ReadRequest, _timeout: float
    ) -> ReadResponse:
        self.asked.append(request)
        damaged = request.entry_id in (LAST, LAST_ENTRY)
        status = self._always or (Status.EIO if damaged else Status.ENOENTRY)
        return ReadResponse(request.txn_id, status, request.ledger_id, request.entry_id)


def fence(pool: Pool, *, last: int = LAST) -> None:
    bookies = Bookies(cast("BookiePool", pool), ClientConfig())
    asyncio.run(bookies.fence("b1", 7, SECRETS, behind=last))


@pytest.mark.parametrize("last", [LAST, -1])
def test_a_damaged_copy_does_not_keep_a_bookie_from_its_fence(last: int) -> None:
    pool = Pool()
    fence(pool, last=last)
    (asked,) = pool.asked
    assert (asked.fence, asked.entry_id, asked.master_key) == (True, last + 1, SECRETS.master_key)


def test_an_error_is_no_fence() -> None:
    with pytest.raises(BKException, match="the fence before a repair"):
        fence(Pool(Status.EIO))


def test_who_refuses_takes_no_copies() -> None:
    with pytest.raises(TargetRefusesException):
        fence(Pool(Status.EUA))


def test_a_ledger_in_limbo_is_fenced() -> None:
    fence(Pool(Status.EUNKNOWNLEDGERSTATE))
