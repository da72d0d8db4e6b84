"""How `ledger write` cuts its input into entries: at line ends, at a delimiter of one's own, or by lengths.

`Delimited` and `LengthPrefixed` take bytes as they come and give the entries that are whole (pure); `entries_of` reads
the input beside the event loop. Not its job: appending.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.commands.client_options import in_daemon_thread

LENGTH_BYTES = 4
"""Of a length before its entry, big-endian, as BookKeeper's frames have it."""
_CHUNK = 256 * 1024
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPED = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class Framing(Protocol):
    """Cuts input into entries."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The entries that are whole with these bytes. Raises IncorrectParameterException."""

    def end(self) -> Iterator[bytes]:
        """The input has ended: what is left. Raises IncorrectParameterException."""


class Delimited:
    """A delimiter ends an entry; the last one may lack it. Nothing between two delimiters is an empty entry."""

    def __init__(self, most_bytes: int, delimiter: bytes = b"\n", *, chomp: bool = False) -> None:
        """`most_bytes`: of an entry; `chomp`: a carriage return at the end of an entry is not part of it."""
        self._delimiter = delimiter
        self._chomp = chomp
        self._most = most_bytes
        self._rest = bytearray()
        self._count = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """See Framing."""
        # Of a delimiter of several bytes the first may have come already.
        looked_at = max(0, len(self._rest) - len(self._delimiter) + 1)
        self._rest += data
        if self._rest.find(self._delimiter, looked_at) >= 0:
            *whole, last = bytes(self._rest).split(self._delimiter)
            self._rest = bytearray(last)
            yield from map(self._entry, whole)
            self._count += len(whole)
        # Input without an end may have no delimiter either: it is refused before it fills the memory.
        # A part of the delimiter may have come already, and what `chomp` takes off.
        if len(self._rest) > self._most + len(self._delimiter) - 1 + self._chomp:
            raise IncorrectParameterException(
                f"entry {self._count} of the input goes on after {len(self._rest):,} bytes without its delimiter, and "
                f"one has {self._most:,} at most"
            )

    def end(self) -> Iterator[bytes]:
        """See Framing."""
        if self._rest:
            yield self._entry(bytes(self._rest))

    def _entry(self, text: bytes) -> bytes:
        return text.removesuffix(b"\r") if self._chomp else text


class LengthPrefixed:
    """Each entry comes behind its length; any bytes can be in it."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of an entry."""
        self._most = most_bytes
        self._rest = bytearray()
        self._count = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """See Framing."""
        self._rest += data
        start = 0
        while len(self._rest) - start >= LENGTH_BYTES:
            size = int.from_bytes(self._rest[start : start + LENGTH_BYTES])
            if size > self._most:
                raise IncorrectParameterException(
                    f"entry {self._count} of the input would have {size:,} bytes, and one has {self._most:,} at most: "
                    "the input is not entries that each come behind their length in 4 bytes, big-endian"
                )
            end = start + LENGTH_BYTES + size
            if end > len(self._rest):
                break
            yield bytes(self._rest[start + LENGTH_BYTES : end])
            self._count += 1
            start = end
        del self._rest[:start]

    def end(self) -> Iterator[bytes]:
        """See Framing."""
        if self._rest:
            raise IncorrectParameterException(
                f"the input ends in the middle of entry {self._count}: {len(self._rest):,} bytes of it are there, its "
                "length among them"
            )
        yield from ()


def delimiter_of(text: str) -> bytes:
    r"""Reads `\n`, `\r`, `\t`, `\0`, `\\` and `\xHH` as in C, all else as it is. Raises IncorrectParameterException."""
    if not text:
        raise IncorrectParameterException("delimiter '': it has at least one character")
    found, at = b"", 0
    for match in _ESCAPE.finditer(text):
        found += text[at : match.start()].encode() + _meant(text, match[1])
        at = match.end()
    return found + text[at:].encode()


def _meant(text: str, escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPED:
        raise IncorrectParameterException(rf"delimiter {text!r}: \{escape} is none of \n, \r, \t, \0, \\ and \xHH")
    return _ESCAPED[escape]


async def entries_of(
    source: int, framing: Framing, progressed: Callable[[int], None] = lambda done: None
) -> AsyncIterator[bytes]:
    """The entries of a file descriptor; `progressed` takes the bytes read so far.

    The source may be slow (a terminal, the end of a log): it is read beside the event loop, so that what was read goes
    out meanwhile and an interrupt is heard. Raises IncorrectParameterException.
    """
    taken = 0
    while chunk := await in_daemon_thread(os.read, source, _CHUNK):
        taken += len(chunk)
        progressed(taken)
        for entry in framing.feed(chunk):
            yield entry
    for entry in framing.end():
        yield entry
