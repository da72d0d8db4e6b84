"""Listeners to changes of auto-recovery, for any store.

The table keeps the last known position of the switch and the last delay and reports them to new listeners; a store that
knows none yet reports them as soon as it has read them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from bookgate.ledger.replication_store import (
    DelayChanged,
    MarksChanged,
    ReplicationEvent,
    ReplicationListener,
    SwitchChanged,
)
from bookgate.runtime.logs import log_bug

_LOG = logging.getLogger(__name__)


class ReplicationListeners:
    """Listeners to one store. Belongs to one event loop."""

    def __init__(self, interest_changed: Callable[[], None], *, always_notified: bool = False) -> None:
        """`interest_changed` is called when the first listener is added and the last one removed. `always_notified`:
        `tell` is also called while there are no listeners, so the known values stay current and are not reported again.
        """
        self._interest_changed = interest_changed
        self._always_notified = always_notified
        self._listeners: dict[object, ReplicationListener] = {}
        self._switch: SwitchChanged | None = None
        self._delay: DelayChanged | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, listener: ReplicationListener) -> Callable[[], None]:
        """Returns a function that removes the listener."""
        key = object()
        if not self._listeners and not self._always_notified:
            # Values from a time without listeners may be outdated.
            self._switch = self._delay = None
        self._listeners[key] = listener
        asyncio.get_running_loop().call_soon(self._notify_known, key)
        if len(self._listeners) == 1:
            self._interest_changed()

        def remove() -> None:
            if self._listeners.pop(key, None) is not None and not self._listeners:
                self._interest_changed()

        return remove

    def clear(self) -> None:
        """Removes all listeners without calling them."""
        self._listeners.clear()

    def tell(self, event: ReplicationEvent) -> None:
        """Notifies all listeners; a switch position that is already known is not reported again."""
        if isinstance(event, SwitchChanged):
            if event == self._switch:
                return
            self._switch = event
        elif isinstance(event, DelayChanged):
            self._delay = event
        for key in list(self._listeners):
            self._notify_one(key, event)

    def _notify_known(self, key: object) -> None:
        known = (MarksChanged(), self._switch, self._delay)
        for event in known:
            if event is not None:
                self._notify_one(key, event)

    def _notify_one(self, key: object, event: ReplicationEvent) -> None:
        listener = self._listeners.get(key)
        if listener is None:
            return
        try:
            listener(event)
        except Exception as error:
            log_bug(_LOG, "replication_listener_failed", error)
