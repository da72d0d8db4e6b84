"""The doctor's findings, each with a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How bad it is. An error is what loses service or data, or soon will."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is what it is about: a gateway, a bookie, the cluster, a file."""

    level: Level
    subject: str
    what: str
    advice: str = ""


def error(subject: str, what: str, advice: str) -> Finding:
    """What loses service or data, or soon will."""
    return Finding(Level.ERROR, subject, what, advice)


def warning(subject: str, what: str, advice: str) -> Finding:
    """What an operator should know."""
    return Finding(Level.WARNING, subject, what, advice)
