"""Reloads a server's TLS certificates when their files change.

Files that can't be loaded, or that are half replaced (a certificate without its key), are logged once for each state of
the files, and the last valid certificates stay in use. Password-protected keys are not supported, because nobody could
enter the password.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.runtime.file_marks import FileMark, mark_of
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. With `client_ca`, clients must present a certificate issued by one of these authorities."""

    cert: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


class Loaded(Generic[_T]):
    """The value that `load` builds from the files; `load` raises IncorrectParameterException for unusable files."""

    def __init__(self, files: TlsFiles, load: Callable[[], _T]) -> None:
        """Raises IncorrectParameterException."""
        self._files = files
        self._load = load
        self._marks: tuple[FileMark, ...] = self._read_marks()
        self.value = load()

    def refresh(self) -> bool:
        """Reloads the files if they changed; returns whether there is a new value since the last call."""
        before = self._marks
        # Recorded before the files are used, so that bad files are not retried until they change again.
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

    def _read_marks(self) -> tuple[FileMark, ...]:
        try:
            return tuple(mark_of(path) for path in self._files.paths)
        except OSError as error:
            raise IncorrectParameterException(f"TLS file {error.filename}: {error.strerror}") from error


def no_password() -> str:
    """Replaces OpenSSL's password prompt at the terminal."""
    raise ValueError("the key is protected by a password; give one without")
