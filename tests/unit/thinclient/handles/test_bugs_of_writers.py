"""A bug in an ensemble change ends the writer: its appends fail, and none waits for ever.

Not in virtual time: a world fails by what is logged as a bug.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookgate import LedgerOptions
from bookgate.ledger.bookie_info import FEATURES_PROPERTY, LEDGER_TERM
from bookgate.ledger.errors import WriteException
from bookgate.ledger.wire.messages import AddRequest, Status
from bookgate.thinclient.core.unbounded.writing import UnboundedWriter
from bookgate.thinclient.core.writing import LedgerWriter
from tests.unit.thinclient.fakes import FakeCluster, fake_cluster, ledger_of

pytestmark = pytest.mark.asyncio


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("planted")


def bugs(caplog: pytest.LogCaptureFixture) -> list[type[BaseException]]:
    return [type(record.exc_info[1]) for record in caplog.records if record.exc_info and record.exc_info[1]]


def refuse_adds(cluster: FakeCluster, bookie_id: str) -> None:
    cluster.bookie(bookie_id).override = lambda request: Status.EIO if isinstance(request, AddRequest) else None


@pytest.mark.parametrize("step", ["begin_change", "finish_change"])
async def test_a_bug_in_a_change_ends_the_writer(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(4) as cluster, asyncio.timeout(10):
        ledger = await ledger_of(cluster, 5)
        monkeypatch.setattr(LedgerWriter, step, broken)
        for bookie_id in ledger.metadata.last_fragment.ensemble[:2]:
            refuse_adds(cluster, bookie_id)
        with pytest.raises(WriteException, match="planted"):
            await ledger.append(b"x")
        assert bugs(caplog) == [ZeroDivisionError]
        await ledger.close()


async def test_a_bug_in_another_try_of_a_bookie_ends_the_writer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(3) as cluster, asyncio.timeout(10):
        ledger = await ledger_of(cluster, 5, failed_bookie_interval_seconds=0.05)
        first, second, _ = ledger.metadata.last_fragment.ensemble
        monkeypatch.setattr(LedgerWriter, "readmit", broken)
        refuse_adds(cluster, first)
        await ledger.append(b"x")
        cluster.bookie(second).silent = True
        with pytest.raises(WriteException, match="planted"):
            await ledger.append(b"y")
        assert bugs(caplog) == [ZeroDivisionError]
        await ledger.close()


@pytest.mark.parametrize("step", ["on_replacements", "on_stored"])
async def test_a_bug_in_a_change_ends_the_writer_of_an_unbounded_ledger(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_cluster(4) as cluster, asyncio.timeout(10):
        cluster.discovery.properties = {FEATURES_PROPERTY: LEDGER_TERM}
        client = cluster.client(add_timeout_seconds=1)
        ledger = await client.create_unbounded_ledger(LedgerOptions(3, 3, 3, password=b"planted-p"))
        monkeypatch.setattr(UnboundedWriter, step, broken)
        refuse_adds(cluster, ledger.metadata.last_fragment.ensemble[0])
        with pytest.raises(WriteException, match="planted"):
            await ledger.append(b"x")
        assert bugs(caplog) == [ZeroDivisionError]
        await ledger.release()
