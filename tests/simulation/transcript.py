"""What happened in a world, a readable line an event: virtual time, who, what. The same seed gives the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


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
