"""The doctor's findings, each with a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FindingLevel(Enum):
    """The severity. An error is a loss of service or data, now or soon."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `subject` is a gateway, a bookie, the cluster or a file."""

    level: FindingLevel
    subject: str
    what: str
    advice: str = ""


def error(subject: str, what: str, advice: str) -> Finding:
    """A loss of service or data, now or soon."""
    return Finding(FindingLevel.ERROR, subject, what, advice)


def warning(subject: str, what: str, advice: str) -> Finding:
    """Something that an operator should know."""
    return Finding(FindingLevel.WARNING, subject, what, advice)
