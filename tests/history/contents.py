"""Payloads that say what they are: a short text determines all the bytes, and the bytes tell the text.

So a history names payloads by their texts, whatever their size, and a damaged, cut or swapped payload has none.
"""

from __future__ import annotations

import zlib

BAD_DIGEST = "bad digest: "
"""Begins the text of a copy whose packet does not match its digest: every reader notices that."""


def content(writer: str, ledger: str, append: int, size: int) -> str:
    """The text of one append; unique in a run, as long as `writer` is."""
    return f"{writer}/{ledger}/{append}/{size}"


def payload_of(text: str) -> bytes:
    """At least the text and its end mark; longer by repetition up to the size that the text ends with."""
    unit = f"{text};".encode()
    size = max(len(unit), int(text.rpartition("/")[2]))
    return (unit * (size // len(unit) + 1))[:size]


def text_of(payload: bytes) -> str:
    """The text whose payload these bytes are; one that names no payload where they are none."""
    text = payload.partition(b";")[0].decode(errors="replace")
    try:
        if payload_of(text) == payload:
            return text
    except ValueError:
        pass
    return f"damaged: {len(payload)} bytes, crc {zlib.crc32(payload):08x}, begin {payload[:40]!r}"
