"""What a listener is told that comes after others have gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookgate.ledger.replication_store import DelayChanged, MarksChanged, SwitchChanged
from bookgate.runtime.replication_listeners import ReplicationListeners


@pytest.mark.asyncio
@pytest.mark.parametrize("always_notified", [True, False])
async def test_what_was_told_while_nobody_listened_counts_where_it_is_always_told(always_notified: bool) -> None:
    """A gateway's stream goes on without listeners, and does not repeat itself for a new one."""
    listeners = ReplicationListeners(lambda: None, always_notified=always_notified)
    listeners.add(lambda _: None)()
    listeners.tell(SwitchChanged(False))
    listeners.tell(DelayChanged(5))
    told: list[Any] = []
    listeners.add(told.append)
    await asyncio.sleep(0)
    assert told == ([MarksChanged(), SwitchChanged(False), DelayChanged(5)] if always_notified else [MarksChanged()])
