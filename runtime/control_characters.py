"""Text that others stored, made harmless to a terminal: no character of it moves the cursor or reorders a line.

Whoever may create a ledger writes names and custom metadata; shown as they are, these could erase or forge what stands
beside them.
"""

from __future__ import annotations

_C0, _DELETE_AND_C1 = range(0x20), range(0x7F, 0xA0)
_LINE_ENDS = range(0x2028, 0x202A)
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))

ESCAPES = {
    **{code: f"\\u{code:04x}" for code in (*_C0, *_DELETE_AND_C1, *_LINE_ENDS, *_BIDIRECTIONAL)},
    **str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"}),
}
"""For `str.translate`. What replaces a character is its escape in JSON too."""


def visible(text: str) -> str:
    """The text in one line, with escapes in place of the characters that a terminal obeys."""
    return text if text.isprintable() else text.translate(ESCAPES)
