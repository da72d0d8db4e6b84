"""A file whose content is read anew when it changes; one that can't be used leaves what was read before.

Files are replaced by renaming, as Kubernetes does it with mounted secrets, or written in place. Whether a file changed
is asked once a second at most, since every call comes by here; ten times for what the content lacks. What can't be used
is an error in the log, once for each state of the file. A file that could not be read, for want of a permission or of a
file descriptor, is tried again at each look: becoming readable need not show in its mark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.clock import monotonic
from bookgate.runtime.file_marks import FileMark, mark_of
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_LOOK_SOONER_SECONDS = 0.1

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What `parse` makes of a file; it raises IncorrectParameterException for content of no use."""

    renewals: ClassVar[int] = 0
    """How often any file of the process was read anew: what was worked out of them counts while it is the same."""

    def __init__(
        self, path: Path, parse: Callable[[str], T], what: str, clock: Callable[[], float] = monotonic
    ) -> None:
        """`what` names the file in messages. Raises IncorrectParameterException when it can't be used."""
        self._path = path
        self._parse = parse
        self._what = what
        self._clock = clock
        self._mark: FileMark | None = None
        self._refused: str | None = None
        self._value = self._read()
        self.next_look = clock() + _LOOK_SECONDS
        """When it is looked at again, by whoever asks then."""

    @property
    def value(self) -> T:
        """As the file has it, or had it when it was last of use."""
        self._look()
        return self._value

    @property
    def problem(self) -> str | None:
        """What is wrong with the file as it is; None: nothing."""
        self._look()
        return self._refused

    def _look(self) -> None:
        if self._clock() >= self.next_look:
            self.refresh()

    def look_sooner(self) -> bool:
        """Looks for what is missing and may have been written just now; whether there is a new value."""
        if self._clock() < self.next_look - _LOOK_SECONDS + _LOOK_SOONER_SECONDS:
            return False
        return self.refresh()

    def refresh(self) -> bool:
        """Looks now; whether there is a new value."""
        self.next_look = self._clock() + _LOOK_SECONDS
        try:
            if mark_of(self._path) == self._mark:
                return False
            self._value = self._read()
        except (OSError, IncorrectParameterException) as error:
            reason = str(error)
            if isinstance(error, OSError):
                self._mark = None
            if reason != self._refused:
                log_event(_LOG, "security_file", logging.ERROR, state="kept-old", file=self._path, reason=reason)
            self._refused = reason
            return False
        self._refused = None
        WatchedFile.renewals += 1
        log_event(_LOG, "security_file", state="renewed", file=self._path)
        return True

    def _read(self) -> T:
        self._mark = None
        try:
            # Before the content: what changes in between is read again.
            mark = mark_of(self._path)
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise IncorrectParameterException(f"{self._what} {self._path} can't be read: {reason}") from error
        # Only now: content of no use is not read again until the file changes, but a failed read is.
        self._mark = mark
        try:
            return self._parse(text)
        except IncorrectParameterException as error:
            raise IncorrectParameterException(f"{self._what} {self._path}: {error}") from error
