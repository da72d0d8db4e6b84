"""A value that the metadata store holds, with its version for compare-and-set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A stored value and its version: 0 after creation, incremented by each update."""

    value: T
    version: int
