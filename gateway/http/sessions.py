"""Browser sessions: a person enters a token once, and the browser holds a cookie instead.

A session is valid no longer than its token, which is checked with each request. Changes by a session must also present
the session's CSRF token, which a page of another origin can't read. A session ends when it was not used for
`IDLE_SECONDS`, after `LONGEST_SECONDS`, and with the process.

Not its job: cookies and headers (`access`), the token's permissions.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from bookgate.runtime.clock import monotonic

IDLE_SECONDS = 1800.0
LONGEST_SECONDS = 12 * 3600.0

_MOST = 1000


@dataclass(slots=True)
class Session:
    """One login. Holds a secret: not for a log."""

    bearer: str = field(repr=False)
    csrf: str = field(repr=False)
    began: float
    used: float

    def has_csrf(self, given: str) -> bool:
        """Whether that is its CSRF token."""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.csrf.encode())


class Sessions:
    """Those of one process; of too many the one that was used the longest ago goes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._all: OrderedDict[str, Session] = OrderedDict()

    def begin(self, bearer: str) -> tuple[str, Session]:
        """A new session, and what the cookie says."""
        now = self._clock()
        while self._all and (len(self._all) >= _MOST or self._has_ended(next(iter(self._all.values())), now)):
            self._all.popitem(last=False)
        name = secrets.token_urlsafe(32)
        session = self._all[name] = Session(bearer, secrets.token_urlsafe(32), now, now)
        return name, session

    def find(self, name: str) -> Session | None:
        """The session of a cookie; None where there is none any more."""
        session, now = self._all.get(name), self._clock()
        if session is None:
            return None
        if self._has_ended(session, now):
            del self._all[name]
            return None
        session.used = now
        self._all.move_to_end(name)
        return session

    def end(self, name: str) -> None:
        """Nothing where there is none."""
        self._all.pop(name, None)

    @staticmethod
    def _has_ended(session: Session, now: float) -> bool:
        return now - session.used > IDLE_SECONDS or now - session.began > LONGEST_SECONDS
