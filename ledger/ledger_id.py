"""Ledger ids have 128 bits; all ledgers that BookKeeper releases create use the lower 64 only.

`scope_id` is bits 64–127, `low` bits 0–63 (docs/protocol/entry-format.md#ledger-ids). Scope 0 is BookKeeper's own
id space: 0 ≤ low < 2**63. In any other scope both halves are arbitrary 64-bit patterns, carried signed.

An id has three forms:

- `LedgerId`, in interfaces: two signed halves;
- its *number*, inside bookies and on the path of entries: the 128 bits as one unsigned integer. The number of an id
  without a scope is its ledger id, and that of any other is 2**64 or more, so that no key, set or listing by number
  ever takes (scope, id) for (0, id) (D1), and ids in scope 0 cost what integers cost;
- its qualified name, for people: 32 hexadecimal digits, scope first.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID, uuid4

NO_ENTRY = -1
"""The entry id that means "no entry": the LAC and last entry id of an empty ledger."""

MAX_UNSCOPED = (1 << 63) - 1
"""The highest number of a ledger without a scope."""
HALF_MASK = (1 << 64) - 1

_MIN_INT64 = -(1 << 63)
_MAX_INT64 = (1 << 63) - 1
_SIGN = 1 << 63
_TWO_64 = 1 << 64

_QUALIFIED_NAME = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_V7_MASK = (1 << 74) - 1
_MAX_UNIX_MS = (1 << 48) - 1


def _signed(half: int) -> int:
    return half - _TWO_64 if half & _SIGN else half


def number_of(scope_id: int, ledger_id: int) -> int:
    """The number of an id given by its signed halves."""
    return ledger_id if scope_id == 0 else (scope_id & HALF_MASK) << 64 | ledger_id & HALF_MASK


def halves_of(number: int) -> tuple[int, int]:
    """The signed halves of a number, scope first."""
    if number < _TWO_64:
        return 0, number
    return _signed(number >> 64), _signed(number & HALF_MASK)


def is_number(number: int) -> bool:
    """Whether a ledger id has this number."""
    return 0 <= number <= MAX_UNSCOPED or _TWO_64 <= number < 1 << 128


def scope_of(number: int) -> int:
    """The signed scope of a number."""
    return _signed(number >> 64) if number >= _TWO_64 else 0


def by_scope(numbers: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
    """Ascending numbers as (signed scope, the numbers of that scope)."""
    for _, found in groupby(numbers, key=lambda number: number >> 64):
        members = list(found)
        yield scope_of(members[0]), members


def ledger_name(number: int) -> str:
    """How people are told of the ledger with this number, which may be none that exists."""
    return str(number) if number < _TWO_64 else f"{number:032x}"


def number_in_json(number: int) -> int | str:
    """The same for programs, whose numbers often have no 128 bits."""
    return number if number < _TWO_64 else ledger_name(number)


def id_array(numbers: Iterable[int]) -> MutableSequence[int]:
    """Numbers in the most compact sequence: eight bytes each where none has a scope."""
    kept = numbers if isinstance(numbers, (list, tuple, array)) else list(numbers)
    try:
        return array("q", kept)
    except OverflowError:
        return list(kept)


@dataclass(frozen=True, slots=True)
class LedgerId:
    """A ledger's id, ordered as its qualified name is. Raises ValueError if a value is out of range."""

    scope_id: int
    low: int

    def __post_init__(self) -> None:
        scope_id, low = self.scope_id, self.low
        if not (_MIN_INT64 <= scope_id <= _MAX_INT64 and _MIN_INT64 <= low <= _MAX_INT64):
            half = low if _MIN_INT64 <= scope_id <= _MAX_INT64 else scope_id
            raise ValueError(f"ledger id half {half} does not fit 64 bits")
        if scope_id == 0 and low < 0:
            raise ValueError(f"ledger id {self.low} is negative; an id without a scope is 0 or more")

    @classmethod
    def unscoped(cls, ledger_id: int) -> LedgerId:
        """The id of a ledger in scope 0, the only scope that BookKeeper's releases support."""
        return cls(0, ledger_id)

    @classmethod
    def of_number(cls, number: int) -> LedgerId:
        """The id with this number. Raises ValueError if no id has it."""
        if number <= MAX_UNSCOPED:
            return cls(0, number)
        if not _TWO_64 <= number < 1 << 128:
            raise ValueError(f"no ledger id has the number {number}; one without a scope is below 2^63")
        return cls(*halves_of(number))

    @classmethod
    def from_uuid(cls, uuid: UUID) -> LedgerId:
        """The id whose upper eight bytes, the scope, and lower eight bytes are those of a UUID, big-endian.

        Raises:
            ValueError: The upper half is 0: that would be an id of scope 0.
        """
        if uuid.int < _TWO_64:
            raise ValueError(f"the upper half of UUID {uuid} is 0, so it names no scope; make another one")
        return cls(*halves_of(uuid.int))

    @classmethod
    def parse(cls, name: str) -> LedgerId:
        """The id of a qualified name: 32 hexadecimal digits in either case, or a UUID with dashes.

        Raises:
            ValueError: It is anything else, or names an id that is out of range.
        """
        if not _QUALIFIED_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no qualified ledger name: give 32 hexadecimal digits, the scope first, "
                "or a UUID with dashes"
            )
        return cls.of_number(int(name.replace("-", ""), 16))

    @classmethod
    def random(cls) -> LedgerId:
        """A new id in a scope of its own: a version 4 UUID."""
        return cls.from_uuid(uuid4())

    @classmethod
    def time_ordered(cls, unix_ms: int) -> LedgerId:
        """A new id that sorts behind those made in earlier milliseconds: a version 7 UUID.

        Args:
            unix_ms: Now, in milliseconds since 1970.

        Raises:
            ValueError: The time does not fit 48 bits, or is 0.
        """
        if not 0 < unix_ms <= _MAX_UNIX_MS:
            raise ValueError(f"{unix_ms} ms is not a time that a version 7 UUID can carry")
        random_bits = uuid4().int & _V7_MASK
        upper = unix_ms << 16 | 7 << 12 | random_bits >> 62
        lower = 0b10 << 62 | random_bits & (1 << 62) - 1
        return cls.from_uuid(UUID(int=upper << 64 | lower))

    @property
    def number(self) -> int:
        """The 128 bits as one unsigned integer; without a scope, `low`."""
        return number_of(self.scope_id, self.low)

    @property
    def qualified_name(self) -> str:
        """32 lower-case hex digits, scope first."""
        return f"{self.number:032x}"

    def to_uuid(self) -> UUID:
        """The UUID with the same bytes."""
        return UUID(int=self.number)

    def __lt__(self, other: LedgerId) -> bool:
        return self.number < other.number

    def __le__(self, other: LedgerId) -> bool:
        return self.number <= other.number

    def __gt__(self, other: LedgerId) -> bool:
        return self.number > other.number

    def __ge__(self, other: LedgerId) -> bool:
        return self.number >= other.number

    def __str__(self) -> str:
        return str(self.low) if self.scope_id == 0 else self.qualified_name


_set_scope_id: Any = vars(LedgerId)["scope_id"].__set__
_set_low: Any = vars(LedgerId)["low"].__set__


def ids_in_scope(scope_id: int, lows: Sequence[int]) -> list[LedgerId]:
    """The ids of one scope with these lower halves, checked together: a listing makes a million of them, and this takes
    a quarter of the time of making each by itself. Raises ValueError as `LedgerId` does.
    """
    for bound in {min(lows), max(lows)} if lows else ():
        LedgerId(scope_id, bound)
    made = []
    for low in lows:
        ledger_id = object.__new__(LedgerId)
        _set_scope_id(ledger_id, scope_id)
        _set_low(ledger_id, low)
        made.append(ledger_id)
    return made
