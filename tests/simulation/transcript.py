"""What happened in a world, a readable line an event: virtual time, who, what. The same seed gives the same bytes."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable

LOGGED = ("bookgate.bookie", "bookgate.gateway", "bookgate.thinclient")


class LogLines(logging.Handler):
    """What the product logs, as lines of a transcript, while it is a context manager's block."""

    def __init__(self, transcript: Transcript, who: Callable[[], str]) -> None:
        super().__init__(logging.INFO)
        self._transcript = transcript
        self._who = who
        self._before: dict[str, tuple[int, bool]] = {}
        self._thread = threading.get_ident()
        """Worlds have one; a real client of this process, which another test left at work, has its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return
        self._transcript.note(self._who(), f"[{record.levelname.lower()}] {record.getMessage()}")

    def __enter__(self) -> None:
        for name in LOGGED:
            logger = logging.getLogger(name)
            self._before[name] = logger.level, logger.propagate
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        for name, (level, propagate) in self._before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate


class Bugs(logging.Handler):
    """Tells of each bug that the product logs, while it is a context manager's block: what is handled so that nobody
    waits for ever must fail a run all the same.
    """

    def __init__(self, tell: Callable[[str, BaseException], None]) -> None:
        super().__init__(logging.ERROR)
        self._tell = tell
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.thread == self._thread:
            self._tell(record.getMessage(), error)

    def __enter__(self) -> None:
        for name in LOGGED:
            logging.getLogger(name).addHandler(self)

    def __exit__(self, *error: object) -> None:
        for name in LOGGED:
            logging.getLogger(name).removeHandler(self)


class Transcript:
    """Keeps its lines, or with `keep` False nothing."""

    def __init__(self, clock: Callable[[], float], *, keep: bool) -> None:
        self._clock = clock
        self.keeps = keep
        self.lines: list[str] = []
        self.on_line: Callable[[str], None] | None = None
        """Hears every line at once, for whoever follows a replay."""

    def note(self, who: str, what: str) -> None:
        if not self.keeps:
            return
        line = f"{self._clock():12.6f} {who:<12} {what}"
        self.lines.append(line)
        if self.on_line is not None:
            self.on_line(line)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def digest(self) -> str:
        """Tells two transcripts apart."""
        return hashlib.sha256(self.text().encode()).hexdigest()
