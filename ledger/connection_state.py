"""Whether a client reaches its metadata, as listeners are told.

| state | means |
|---|---|
| CONNECTED | a gateway has answered |
| SUSPENDED | every gateway has failed its last call: calls wait and are repeated until their deadlines |
| CLOSED | the client was closed; nothing follows |

A change is noticed by a call or a stream: an idle client without watches notices none.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class ConnectionState(Enum):
    """See the module."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    CLOSED = "closed"


ConnectionListener = Callable[[ConnectionState], None]
"""Called on the client's event loop; it must not block."""


class ConnectionListeners:
    """The state and who is told of its changes."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        """`on_error`: told of what a listener raises, which goes no further."""
        self._on_error = on_error
        self._listeners: list[ConnectionListener] = []
        self.state: ConnectionState | None = None
        """None before the first call has ended."""

    def add(self, listener: ConnectionListener) -> Callable[[], None]:
        """Adds a listener, which is told the present state at once if there is one. Returns what removes it."""
        self._listeners.append(listener)
        if self.state is not None:
            self._tell(listener, self.state)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def become(self, state: ConnectionState) -> None:
        """Takes a state in, and tells a change of it."""
        if state is self.state or self.state is ConnectionState.CLOSED:
            return
        self.state = state
        for listener in tuple(self._listeners):
            self._tell(listener, state)

    def _tell(self, listener: ConnectionListener, state: ConnectionState) -> None:
        try:
            listener(state)
        except Exception as error:
            self._on_error(error)
