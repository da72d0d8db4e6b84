"""The text form of protobuf as BookKeeper writes it, where bytes matter: quoting, and fields that are kept unread.

Python's own writer escapes differently, and its parser drops fields that it does not know. Source:
docs/protocol/metadata.md#serialization.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}

_WRITTEN = tuple(_ESCAPES.get(b) or (chr(b) if 0x20 <= b <= 0x7E else f"\\{b:03o}") for b in range(256))
"""What stands for each byte."""

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*|[;,])
      | (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<open>[{<\[])
      | (?P<close>[}>\]])
      | (?P<colon>:)
      | (?P<word>[^\s\#;,"'{}<>\[\]:]+)""",
    re.VERBOSE,
)


def quoted(value: bytes | str) -> str:
    """A string or bytes value in protobuf text form, escaped as BookKeeper's writer escapes it."""
    data = value.encode() if isinstance(value, str) else value
    return '"' + data.decode("latin-1").translate(_WRITTEN) + '"'


def top_level_fields(text: str) -> Iterator[tuple[str, str]]:
    """Splits a message into its fields: the name of each, and its source text from the name to the end of the value.

    Raises:
        ValueError: The text is not a message in text form.
    """
    name, start, end, depth, valued = "", 0, 0, 0, False
    for token in _tokens(text):
        kind = token.lastgroup
        if depth == 0 and valued and kind == "word":
            yield name, text[start:end]
            name = ""
        if not name:
            if kind != "word":
                raise ValueError(f"a field was expected at {text[token.start() : token.start() + 20]!r}")
            name, start, valued = token[0], token.start(), False
        elif kind in ("text", "word", "close"):
            valued = True
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        end = token.end()
    if depth or (name and not valued):
        raise ValueError(f"the text ends within field {name}")
    if name:
        yield name, text[start:end]


def _tokens(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"{text[position : position + 20]!r} is no protobuf text")
        position = token.end()
        if token.lastgroup != "skip":
            yield token
