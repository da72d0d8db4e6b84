"""Certificate files that may change while a process runs: values built from them are rebuilt when they have changed.

`Reloader` is used with two rules for unusable files. A client of bookies fails with the reason (`Reloader.current`),
since a withdrawn certificate must not stay in use. A server, and a client of gateways, which may be a bookie that has
to stay registered, keep the last valid certificates (`LastGood`) and log the reason once for each state of the files,
since a half-replaced pair must not end the service.

Password-protected keys are not supported, because nobody could enter the password.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from bookgate.ledger.errors import BKException, IncorrectParameterException
from bookgate.runtime.file_marks import FileMark, mark_of
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """Paths of PEM files. With `client_ca`, clients must present a certificate issued by one of these authorities."""

    cert: str
    key: str
    client_ca: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.cert, self.key, *([self.client_ca] if self.client_ca else []))


class Reloader(Generic[_T]):
    """The value that `load` builds from the files, rebuilt when one of them has changed."""

    def __init__(self, paths: Sequence[str], load: Callable[[], _T], refused: type[BKException]) -> None:
        """`load` raises `refused` for unusable files; so does `current` for inaccessible files."""
        self._paths = paths
        self._load = load
        self._refused = refused
        self._value: _T | None = None
        self.marks: tuple[FileMark, ...] = ()
        """State of the files at the last check; empty if one of them was inaccessible."""

    def current(self) -> _T:
        """The value for the present files. Raises the exception type `refused`."""
        before, self.marks = self.marks, ()
        self.marks = self._read_marks()
        if self._value is None or self.marks != before:
            self._value = None
            self._value = self._load()
        return self._value

    def _read_marks(self) -> tuple[FileMark, ...]:
        try:
            return tuple(mark_of(path) for path in self._paths)
        except OSError as error:
            raise self._refused(f"TLS file {error.filename} can't be read: {error.strerror or error}") from error


class TlsFiles(Protocol):
    """Which PEM files are used."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them, the certificate first."""


class LastGood(Generic[_T]):
    """The value of the last usable files."""

    def __init__(self, files: TlsFiles, load: Callable[[], _T]) -> None:
        """Raises IncorrectParameterException for unusable files."""
        self._files = files
        self._reloader = Reloader(files.paths, load, IncorrectParameterException)
        self.value = self._reloader.current()
        self._seen = self._reloader.marks

    def refresh(self) -> bool:
        """Reloads the files if they changed; returns whether there is a new value since the last call."""
        before, was = self._seen, self.value
        try:
            self.value = self._reloader.current()
        except IncorrectParameterException as error:
            if self._reloader.marks != before:
                log_event(_LOG, "tls", logging.ERROR, state="kept-old", reason=error)
            return False
        finally:
            self._seen = self._reloader.marks
        if self.value is was:
            return False
        log_event(_LOG, "tls", state="renewed", cert=self._files.paths[0])
        return True


def load_files(
    context: ssl.SSLContext, cert: str | Path | None, key: str | Path | None, authorities: str | Path | None
) -> None:
    """Loads PEM files, those that are given. Raises IncorrectParameterException if they can't be used together."""
    try:
        if cert is not None:
            context.load_cert_chain(cert, key, password=no_password)
        if authorities is not None:
            context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        files = ", ".join(str(each) for each in (cert, key, authorities) if each is not None)
        raise IncorrectParameterException(f"the TLS files {files} can't be used together: {reason}") from error


def no_password() -> str:
    """Replaces OpenSSL's password prompt at the terminal."""
    raise ValueError("the key is protected by a password; give one without")
