"""Where a server's TLS certificates are, and what is made of them, made anew when the files change.

What can't be used, or is half of a change (a certificate without its key), is logged once for each state of the files,
and the last good one stays in use. A key that is protected by a password can't be used: there is nobody to ask.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")
_Marks = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca` clients must show a certificate of these authorities."""

    cert: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


class Loaded(Generic[_T]):
    """What `load` makes of the files. It raises IncorrectParameterException for those that can't be used."""

    def __init__(self, files: TlsFiles, load: Callable[[], _T]) -> None:
        """Raises IncorrectParameterException."""
        self._files = files
        self._load = load
        self._marks = self._read_marks()
        self.value = load()

    def refresh(self) -> bool:
        """Whether there is a new value since the last call. One look at the files, unless they have changed."""
        before = self._marks
        # Noted before they are used: not tried again until the files change once more.
        self._marks = ()
        try:
            self._marks = self._read_marks()
            if self._marks == before:
                return False
            self.value = self._load()
        except IncorrectParameterException as error:
            if self._marks != before:
                log_event(_LOG, "tls", logging.ERROR, state="kept-old", reason=error)
            return False
        log_event(_LOG, "tls", state="renewed", cert=self._files.cert)
        return True

    def _read_marks(self) -> _Marks:
        try:
            stats = [os.stat(path) for path in self._files.paths]
        except OSError as error:
            raise IncorrectParameterException(f"TLS file {error.filename}: {error.strerror}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


def no_password() -> str:
    """Instead of OpenSSL's question at the terminal."""
    raise ValueError("the key is protected by a password; give one without")
