"""What the supervisor tells an instance: which one it is, and where the host's settings come from.

The settings themselves are not in it, so that an instance that is started again takes them as they are then, and a
newer version of the code reads them by its own rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from bookgate.bookie.config.bookie import BookieConfig
from bookgate.bookie.instances.rules import settings_of


@dataclass(frozen=True, slots=True)
class Sources:
    """What a start was given: the settings' file, its options, and those of `--set`. All is plain JSON."""

    file: str | None
    values: Mapping[str, Any]
    options: Mapping[str, Any]

    def load(self) -> BookieConfig:
        """The settings as they are now. Raises IncorrectParameterException."""
        return BookieConfig.load(Path(self.file) if self.file else None, self.values, self.options)


@dataclass(frozen=True, slots=True)
class Order:
    """Of `count` instances number `number`, by settings from `sources`."""

    sources: Sources
    number: int
    count: int

    def as_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        told = json.loads(line)
        return cls(Sources(**told["sources"]), told["number"], told["count"])

    def settings(self) -> BookieConfig:
        """The instance's. Raises IncorrectParameterException."""
        return settings_of(self.sources.load(), self.number, self.count)
