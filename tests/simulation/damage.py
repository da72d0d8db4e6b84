"""Damage to one file of a bookie while it is down: bits turned over, cut, zeros at its end, removed, an older copy.

Every kind of file comes, each in its turn. *Told* is a damage that a start can tell, or that costs nothing: the bookie
has to come up truthful, or to refuse. Of the others, which the formats hide, somebody else knows: whoever runs the
bookie accepts the loss, or gives it up. Whatever is damaged, the bookie is never excused from denying what it had
acknowledged (S8).

Not its job: taking the bookie down and up (`faults`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bookgate.bookie.index.file_format import HEADER_SIZE, SLOT_SIZE, decode_header, ledger_id_of
from bookgate.bookie.index.index_list import LIST_FILE, IndexList
from bookgate.bookie.journal.format import LogMark, journal_id_of
from bookgate.bookie.journal.last_mark import is_last_here, mark_file_name, read_mark
from tests.faults.memory_disk import MemoryDisk
from tests.simulation.simulated_bookie import SimulatedBookie

_WAYS = ("flip", "cut", "zeros", "remove", "old")
_WEIGHTS = {"journal": 4, "mark": 4, "index": 12, "log": 2}
"""Of kinds of files; one of all others."""
_INDEX_WAYS = {"remove": 4, "old": 4}
"""Of ways to damage an index file; one of all others. Few of them hold what anybody asks for again."""
_MOST_BITS = 3
_BLOCK = 512


class Damage(NamedTuple):
    """What was done. `told`: see the module."""

    path: Path
    way: str
    told: bool

    def __str__(self) -> str:
        return f"{self.path} {self.way}, {'told' if self.told else 'hidden'}"


def contents(bookie: SimulatedBookie) -> dict[Path, bytes]:
    """All files of a bookie as they are."""
    media = bookie.disk.media
    return {path: media.content(path) for path in media.files(Path("/")) if path.suffix != ".lock"}


def damage_a_file(bookie: SimulatedBookie, old: Mapping[Path, bytes], rng: random.Random) -> Damage | None:
    """Of a bookie that is down; `old` are its files at an earlier time. None when it has no file."""
    now = contents(bookie)
    if not now:
        return None
    kinds: dict[str, list[Path]] = {}
    for path in sorted(now):
        kinds.setdefault(kind_of(path), []).append(path)
    kind = rng.choices(sorted(kinds), [_WEIGHTS.get(each, 1) for each in sorted(kinds)])[0]
    return _damage(bookie, rng.choice(kinds[kind]), now, old, rng)


def damage_a_journal(bookie: SimulatedBookie, old: Mapping[Path, bytes], rng: random.Random) -> Damage | None:
    """The same of a file that the next start needs, half the time in front of the mark: the mark vouches for that."""
    now = contents(bookie)
    marks = {path: _mark_of(bookie, path) for path in sorted(now) if kind_of(path) == "journal"}
    needed = [path for path, mark in marks.items() if (journal_id_of(path.name) or 0) >= mark.journal_id]
    named = [
        path for path in needed if journal_id_of(path.name) == marks[path].journal_id and _is_past_records(marks[path])
    ]
    if not needed:
        return None
    path = rng.choice(rng.choice((named, needed)) or needed)
    return _damage(bookie, path, now, old, rng, rng.choice((marks[path].offset, len(now[path]))))


def has_flushed(bookie: SimulatedBookie) -> bool:
    """Whether a checkpoint of it has left records of a journal behind."""
    journals = [directory / "current" for directory in bookie.config.journals]
    return any(_is_past_records(_mark_of(bookie, directory / "any")) for directory in journals)


def _is_past_records(mark: LogMark) -> bool:
    """Whether there are records of its journal in front of it."""
    return mark.journal_id > 0 and mark.offset > _BLOCK


def _damage(
    bookie: SimulatedBookie,
    path: Path,
    now: Mapping[Path, bytes],
    old: Mapping[Path, bytes],
    rng: random.Random,
    end: int | None = None,
) -> Damage:
    before = now[path]
    ways = [way for way in _WAYS if before or way in ("remove", "old")]
    if old.get(path, before) == before:
        ways.remove("old")
    weights = _INDEX_WAYS if kind_of(path) == "index" else {}
    way = rng.choices(ways, [weights.get(each, 1) for each in ways])[0]
    after = _changed(before, way, old.get(path, b""), rng, end)
    told = _is_told(bookie, path, way, before, after)
    _put(bookie.disk.media, path, after)
    return Damage(path, way, told)


def kind_of(path: Path) -> str:
    """journal, log, index, mark, or its own name."""
    kinds = {".txn": "journal", ".log": "log", ".idx": "index"}
    return "mark" if path.name.startswith("lastMark") else kinds.get(path.suffix, path.name)


def _changed(before: bytes, way: str, old: bytes, rng: random.Random, end: int | None) -> bytes | None:
    """What it is changed to; bits turn over, and what is kept ends, in front of `end`."""
    if way == "remove":
        return None
    if way == "old":
        return old
    # The zeros that a journal has made ready are not worth the while.
    size = max(1, min(len(before.rstrip(b"\0")), end or len(before)))
    if way == "flip":
        changed = bytearray(before)
        for _ in range(rng.randint(1, _MOST_BITS)):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    kept = before[: rng.randrange(size)]
    return kept if way == "cut" else kept.ljust(len(before), b"\0")


def _put(media: MemoryDisk, path: Path, after: bytes | None) -> None:
    if after is not None:
        media.put(path, after)
        return
    media.unlink(path)
    media.sync_directory(path.parent)


def _is_told(bookie: SimulatedBookie, path: Path, way: str, before: bytes, after: bytes | None) -> bool:
    if after is not None and after.rstrip(b"\0") == before.rstrip(b"\0"):
        return True
    rules: dict[str, Callable[[], bool]] = {
        "journal": lambda: _journal_is_told(bookie, path, before, after),
        "index": lambda: _index_is_told(bookie, path, way, before, after),
    }
    rule = rules.get(kind_of(path))
    return rule is None or rule()


def _index_is_told(bookie: SimulatedBookie, path: Path, way: str, before: bytes, after: bytes | None) -> bool:
    """By the list where the file is in it, or by the seal in the header, where that is still there."""
    if way == "flip":
        return True
    listed = _listed(bookie, path)
    if after is None:
        return listed is not None
    if way == "old":
        older = decode_header(after, "older")
        return bool(listed) and (older is None or older.generation < (listed or 0))
    header = decode_header(before, "before")
    if after[:HEADER_SIZE] != before[:HEADER_SIZE]:
        return bool(listed)
    return header is not None and _last_slot(after) < header.sealed_last_entry


def _listed(bookie: SimulatedBookie, path: Path) -> int | None:
    """What the list of index files says of one, None where nothing. It is read from a copy."""
    media, config = bookie.disk.media, bookie.config
    name = config.ledgers[0] / LIST_FILE
    if not is_last_here(media, config.ledgers, len(config.journals)) or not media.exists(name):
        return None
    disk = MemoryDisk(Path("/"))
    disk.put(name, media.content(name))
    listed, number = IndexList(disk, name), ledger_id_of(path.name)
    return listed.generation_of(number) if listed.load() and number is not None else None


def _last_slot(content: bytes) -> int:
    return max(-1, -(-(len(content.rstrip(b"\0")) - HEADER_SIZE) // SLOT_SIZE) - 1)


def _journal_is_told(bookie: SimulatedBookie, path: Path, before: bytes, after: bytes | None) -> bool:
    journal_id, mark = journal_id_of(path.name) or 0, _mark_of(bookie, path)
    if journal_id < mark.journal_id:
        return True
    others = [
        journal_id_of(each.name) or 0
        for each in contents(bookie)
        if each.parent == path.parent and each.suffix == path.suffix and each != path
    ]
    if after is None:
        between = any(each < journal_id for each in others) or mark.journal_id > 0
        return journal_id == mark.journal_id or not others or (between and any(each > journal_id for each in others))
    first = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    if journal_id != mark.journal_id:
        return False
    last = max((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), default=0)
    if len(after) == len(before) and last < mark.offset and any(after[mark.offset :]):
        return True  # nothing there is needed any more
    return len(after) < mark.offset or (first <= mark.offset - _BLOCK and not any(after[first:]))


def _mark_of(bookie: SimulatedBookie, path: Path) -> LogMark:
    config = bookie.config
    journals = [directory / "current" for directory in config.journals]
    name = mark_file_name(journals.index(path.parent), len(journals))
    return read_mark(bookie.disk.media, config.ledgers, name)
