"""The audit trail: one structured line for each change and each denial, and for reads where they are asked for.

Event `audit` of the logger `bookgate.audit`, at level info, a denial at warning; beside it optionally a file of JSON
lines, readable by its owner only, that begins anew when it gets long. A line has who, from where, by which door, what,
to what, the outcome, the rule that decided, the request's token in short, and how long it took. It never has a secret:
callers pass names of resources, not contents.

What somebody may provoke without end, and without being anybody, has a line for the first of its kind and then one a
minute (`record_some`); the metrics count all.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import re
from collections import defaultdict
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.clock import monotonic
from bookgate.runtime.logs import LineFormatter, log_event
from bookgate.runtime.security.actions import Action
from bookgate.runtime.security.principal import Principal
from bookgate.runtime.security.settings import SecuritySettings

_log = logging.getLogger(__name__)

AUDIT_LOGGER = "bookgate.audit"

_TOKEN_CHARACTERS = 12

_QUIET_SECONDS = 60.0
_MOST_KINDS = 1000
"""Of which a line is written in that time at each door; of more there is none."""
_PORT = re.compile(r"(?<=[^:]):[0-9]+$")


_REFUSALS = ("denied", "unauthenticated", "quota", "limited")


class AuditTrail:
    """The trail of one process."""

    def __init__(
        self,
        *,
        reads: bool = False,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._reads = reads
        self._clock = clock
        self._written: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        """When there was a line of each kind at a door, the oldest first."""
        self._logger = logger or logging.getLogger(AUDIT_LOGGER)
        self._handler: logging.Handler | None = None

    @classmethod
    def from_settings(cls, settings: SecuritySettings) -> AuditTrail:
        """Raises IncorrectParameterException for a file that can't be written."""
        trail = cls(reads=settings.audit_reads)
        if settings.audit_file is not None:
            trail.write_to(settings.audit_file, settings.audit_file_bytes, settings.audit_files)
        return trail

    def write_to(self, path: Path, most_bytes: int, files: int) -> None:
        """Writes to a file as well, until `close`. Raises IncorrectParameterException."""
        try:
            self._handler = _PrivateFile(path, maxBytes=most_bytes, backupCount=files - 1, encoding="utf-8")
        except OSError as error:
            raise IncorrectParameterException(f"audit file {path} can't be written: {error.strerror}") from error
        self._handler.setFormatter(LineFormatter(as_json=True))
        self._logger.addHandler(self._handler)
        # The file is complete whatever the level of the log.
        self._logger.setLevel(logging.INFO)

    def wants(self, action: Action, *, allowed: bool) -> bool:
        """Whether there is to be a line: always for changes and denials, where anybody takes them."""
        if allowed and not self._logger.isEnabledFor(logging.INFO):
            return False
        return self._reads or not allowed or not action.is_reading

    def record(
        self,
        *,
        principal: Principal,
        peer: str,
        door: str,
        action: Action | str,
        resource: str,
        outcome: str,
        rule: str = "",
        request_token: bytes = b"",
        seconds: float | None = None,
    ) -> None:
        """Writes a line. `outcome`: `allowed`, `denied`, or the code with which the call ended."""
        fields: dict[str, object] = {
            "principal": principal,
            "peer": peer,
            "door": door,
            "action": action,
            "resource": resource,
            "outcome": outcome,
        }
        if rule:
            fields["rule"] = rule
        if request_token:
            fields["request_token"] = request_token.hex()[:_TOKEN_CHARACTERS]
        if seconds is not None:
            fields["milliseconds"] = round(seconds * 1000, 3)
        level = logging.WARNING if outcome in _REFUSALS else logging.INFO
        log_event(self._logger, "audit", level, **fields)

    def record_some(
        self,
        *,
        principal: Principal,
        peer: str,
        door: str,
        action: Action | str,
        resource: str,
        outcome: str,
        rule: str,
    ) -> None:
        """Writes a line unless there was one of this kind within a minute: all the same but resource and port."""
        if self._is_due(door, str(principal), _host(peer), action, outcome, rule):
            self.record(
                principal=principal,
                peer=peer,
                door=door,
                action=action,
                resource=resource,
                outcome=outcome,
                rule=rule,
            )

    def _is_due(self, door: str, *kind: str) -> bool:
        now, written = self._clock(), self._written[door]
        while written and now - written[oldest := next(iter(written))] >= _QUIET_SECONDS:
            del written[oldest]
        if kind in written or len(written) >= _MOST_KINDS:
            return False
        written[kind] = now
        return True

    def close(self) -> None:
        """Ends the file."""
        if self._handler is not None:
            self._logger.removeHandler(self._handler)
            self._handler.close()
            self._handler = None


def _host(peer: str) -> str:
    """A peer without its port, which is another one with each connection; an IPv6 address alone has none."""
    address = peer.removeprefix("ipv4:").removeprefix("ipv6:")
    has_port = address.count(":") == 1 or "]:" in address or "%5D:" in address
    return _PORT.sub("", address) if has_port else address


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A file that only its owner reads, from its first byte on."""

    _rolls_from = 0.0

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return TextIOWrapper(open(descriptor, "ab"), encoding=self.encoding)

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 - a method of logging
        """Not again for a minute after it failed."""
        return monotonic() >= self._rolls_from and bool(super().shouldRollover(record))

    def doRollover(self) -> None:  # noqa: N802 - a method of logging
        """Begins the file anew. Where that fails, the present one goes on beyond its limit, wherever it is by then."""
        try:
            anew = self._anew()
        except OSError as error:
            self._rolls_from = monotonic() + _QUIET_SECONDS
            log_event(_log, "audit_file_not_renamed", logging.ERROR, file=self.baseFilename, error=error)
            return
        former, self.stream = self.stream, anew
        if former is not None:
            # Fails only for a line whose own write has failed before, and was told.
            with contextlib.suppress(OSError):
                former.close()

    def _anew(self) -> TextIOWrapper:
        """An empty file under the name. Without older files, which logging takes for no limit at all, it is emptied."""
        if self.backupCount > 0:
            self._put_aside()
            return self._open()
        # Whoever has moved the file away keeps what is in it: the one under this name is opened, and emptied.
        anew = self._open()
        try:
            anew.truncate(0)
        except OSError:
            anew.close()
            raise
        return anew

    def _put_aside(self) -> None:
        """Makes the file the first of the older ones.

        Those are touched once the file has left its name: in a directory of somebody else, or as a mount, it may have
        to stay although they can be renamed, and each attempt would remove one of them.
        """
        rolling = Path(f"{self.baseFilename}.rolling")
        if rolling.is_file():
            # The process ended in between.
            self._make_first(rolling)
        if not Path(self.baseFilename).exists():
            return
        Path(self.baseFilename).rename(rolling)
        try:
            self._make_first(rolling)
        except OSError:
            rolling.rename(self.baseFilename)
            raise

    def _make_first(self, file: Path) -> None:
        """Moves the older files up to the first free number; the last one is removed only where none is free."""
        older = [Path(f"{self.baseFilename}.{number}") for number in range(1, self.backupCount + 1)]
        free = next((place for place, each in enumerate(older) if not each.exists()), len(older) - 1)
        for place in range(free, 0, -1):
            older[place - 1].replace(older[place])
        file.replace(older[0])
