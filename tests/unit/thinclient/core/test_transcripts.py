"""Runs of the protocol that a person reads and a machine compares: `transcripts/*.txt`.

A line without indentation is an event, the indented ones below it are what the core answers with. `#` begins a comment.
After a deliberate change, `REWRITE_TRANSCRIPTS=1` writes the answers anew; read the difference before it is committed.

A file begins with its core and ledger: `writer 3/3/2 a b c` is ensemble size, write and ack quorum, members; `recovery`
likewise. Events of a writer: `add SIZE`, `ack ENTRY BOOKIE`, `fail ENTRY BOOKIE ERROR`, `change` (begins), `change a b
d` (is stored), `abort`. Of a recovery: `begin`, `fenced INDEX ANSWER`, `read ENTRY ANSWER`, `stored ENTRY BOOKIE`,
`not-stored ENTRY BOOKIE ERROR`, `replace INDEX=BOOKIE…`. An ANSWER is `missing`, an ERROR (`ERRORS`), or `entry ID lac
LAC length LENGTH`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

from bookgate.ledger import errors
from bookgate.ledger.entry import Entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.recovery import Effect, Failed, FenceRead, Finished, LedgerRecovery, RecoveryAdd, Replace
from bookgate.thinclient.core.recovery_reads import Answer, Missing, RecoveryRead, Unreadable
from bookgate.thinclient.core.writing import LedgerWriter, Member, PendingAdd

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
LEDGER = LedgerId.unscoped(5)
PAYLOAD = 10

ERRORS: dict[str, Callable[[], errors.BKException]] = {
    "unreachable": errors.BookieHandleNotAvailableException,
    "fenced": errors.LedgerFencedException,
    "timeout": errors.TimeoutException,
    "damaged": errors.DigestMatchException,
}


def sizes(words: Sequence[str]) -> tuple[int, int, int, list[str]]:
    ensemble, write, ack = map(int, words[0].split("/"))
    return ensemble, write, ack, list(words[1:])


class Writing:
    """A writer, told by a transcript."""

    def __init__(self, words: Sequence[str]) -> None:
        _, write, ack, bookies = sizes(words)
        self.writer = LedgerWriter(LEDGER, bookies, write, ack)
        self.adds: dict[int, PendingAdd] = {}
        self.sent: dict[tuple[int, str], Member] = {}

    def on(self, event: str, words: list[str]) -> Iterator[str]:
        yield from getattr(self, f"_{event}")(*words)
        yield f"{self.writer.state.name}, LAC {self.writer.last_add_confirmed}"

    def _add(self, size: str) -> Iterator[str]:
        try:
            add = self.writer.begin_add(int(size))
        except errors.BKException as error:
            yield f"refused: {type(error).__name__}"
            return
        self.adds[add.entry_id] = add
        yield self._send(add, add.indexes)

    def _send(self, add: PendingAdd, indexes: Iterable[int]) -> str:
        members = [self.writer.members[index] for index in indexes]
        self.sent.update({(add.entry_id, member.bookie_id): member for member in members})
        return f"send entry {add.entry_id} to {' '.join(member.bookie_id for member in members) or 'nobody'}"

    def _ack(self, entry_id: str, bookie: str) -> Iterator[str]:
        yield from _confirmed(self.writer.on_ack(self.adds[int(entry_id)], self.sent[int(entry_id), bookie]))

    def _fail(self, entry_id: str, bookie: str, error: str) -> Iterator[str]:
        member = self.sent[int(entry_id), bookie]
        yield from _failed(self.writer.on_failure(member, ERRORS[error](), self.adds[int(entry_id)]))

    def _change(self, *ensemble: str) -> Iterator[str]:
        if not ensemble:
            failed = self.writer.begin_change()
            yield f"replace {' '.join(f'{index}={bookie}' for index, bookie in failed.items())}"
            return
        changed = self.writer.finish_change(ensemble)
        yield from (self._send(add, [index]) for add, index in changed.resend)
        yield from _confirmed(changed.confirmed)
        yield from _failed(changed.failed)

    def _abort(self) -> Iterator[str]:
        yield from _failed(self.writer.abort(errors.ClientClosedException()))


def _confirmed(adds: Sequence[PendingAdd]) -> Iterator[str]:
    if adds:
        yield f"confirmed {' '.join(str(add.entry_id) for add in adds)}"


def _failed(adds: Sequence[PendingAdd]) -> Iterator[str]:
    if adds:
        yield f"failed {' '.join(str(add.entry_id) for add in adds)}"


class Recovering:
    """A recovery, told by a transcript."""

    def __init__(self, words: Sequence[str]) -> None:
        _, write, ack, bookies = sizes(words)
        metadata = LedgerMetadata.new(bookies, write, ack).begin_recovery()
        self.recovery = LedgerRecovery(LEDGER, metadata, read_batch=2)
        self.adds: dict[int, PendingAdd] = {}
        self.sent: dict[tuple[int, str], Member] = {}

    def on(self, event: str, words: list[str]) -> Iterator[str]:
        yield from chain.from_iterable(map(self._told, self._effects(event, words)))
        yield self.recovery.state.name

    def _effects(self, event: str, words: list[str]) -> Sequence[Effect]:
        recovery = self.recovery
        match event:
            case "begin":
                return recovery.begin()
            case "fenced":
                return recovery.on_fence_answer(int(words[0]), _answer(words[1:]))
            case "read":
                return recovery.on_read_answer(int(words[0]), _answer(words[1:]))
            case "replace":
                return recovery.on_replacements({int(word[0]): word[2:] for word in words})
        entry_id, bookie = int(words[0]), words[1]
        add, member = self.adds[entry_id], self.sent[entry_id, bookie]
        if event == "stored":
            return recovery.on_add_ack(add, member)
        return recovery.on_add_failure(add, member, ERRORS[words[2]]())

    def _told(self, effect: Effect) -> Iterator[str]:
        match effect:
            case FenceRead(index, bookie):
                yield f"fence {index}={bookie}"
            case RecoveryRead(entry_id, bookie):
                yield f"read entry {entry_id} from {bookie}"
            case RecoveryAdd(add, _, members):
                self.adds[add.entry_id] = add
                self.sent.update({(add.entry_id, member.bookie_id): member for member in members})
                bookies = " ".join(member.bookie_id for member in members)
                yield f"add entry {add.entry_id} with lac {add.last_add_confirmed} to {bookies}"
            case Replace(_, failed):
                yield f"replace {' '.join(f'{index}={bookie}' for index, bookie in failed.items())}"
            case Finished(last_entry_id, length, fragments):
                yield f"finished: last entry {last_entry_id}, length {length}"
                yield from (f"fragment from {each.first_entry_id}: {' '.join(each.ensemble)}" for each in fragments)
            case Failed(error):
                yield f"failed: {type(error).__name__}"


def _answer(words: list[str]) -> Answer:
    if words[0] == "missing":
        return Missing.MISSING
    if words[0] in ERRORS:
        return Unreadable(ERRORS[words[0]]())
    _, entry_id, _, lac, _, length = words
    return Entry(LEDGER.low, int(entry_id), int(lac), int(length), bytes(PAYLOAD))


CORES: dict[str, Callable[[Sequence[str]], Writing | Recovering]] = {"writer": Writing, "recovery": Recovering}


def replayed(text: str) -> str:
    """The transcript with the answers that the core gives."""
    core: Writing | Recovering | None = None
    lines = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        event, *words = line.split("#")[0].split() or [""]
        if not event:
            continue
        if core is None:
            core = CORES[event](words)
            continue
        lines += [f"  {answer}" for answer in core.on(event.replace("-", "_"), words)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_run_is_as_told(path: Path) -> None:
    told = path.read_text()
    found = replayed(told)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(found)
    else:
        assert found == told
