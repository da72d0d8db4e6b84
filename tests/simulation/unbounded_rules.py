"""What must hold of one unbounded ledger in a world: G1 to G3, U2 to U5, P12 and what readers are shown.

Judged at each change of the metadata, by what is durable on the bookies; at each acknowledgement and each entry read;
and at the end. U1 is judged by the exploration (tests/explore), which sees every request of a bookie.
Source: docs/protocol/invariants.md#invariants-of-guaranteed-write-quorum-and-terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import Entry, decode_entry
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.quorum import write_set
from bookgate.ledger.unbounded import deleted_before, terms_of
from tests.faults.memory_disk import nothing_survives
from tests.history.recording_client import PASSWORD
from tests.history.violations import (
    AcknowledgedValueLost,
    BookiesDiffer,
    FragmentNotReplicated,
    IllegalTransition,
    LedgerNotReplicated,
    TermWithTwoHolders,
    TooFewOfAnAcknowledged,
    TruncatedTooLittle,
)
from tests.simulation.world import World


def _text(payload: bytes) -> str:
    return payload[:24].decode()


_DIGEST = digest_for(DigestType.CRC32C, PASSWORD)

Held = Mapping[str, Mapping[int, Entry]]
"""By bookie what is durable there of the ledger."""


class UnboundedRules:
    """Of one ledger."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.looked: Counter[str] = Counter()
        self.acknowledged: dict[int, bytes] = {}
        self.shown: dict[int, tuple[bytes, str]] = {}
        """What some reader was shown first, by entry, and how."""
        self._holders: dict[int, int] = {}
        self.records: list[LedgerRecord] = []
        """As the store has had the ledger, one after the other."""
        self._truncate_entry_id = NO_ENTRY
        """That of the last take-over that was completed; -1 before the first."""

    # What clients hear

    def acked(self, entry_id: int, payload: bytes) -> None:
        self.looked["U5"] += 1
        if self.acknowledged.setdefault(entry_id, payload) != payload:
            self._fail(AcknowledgedValueLost(f"entry {entry_id} was acknowledged twice, as different values"))
        if (known := self.shown.setdefault(entry_id, (payload, "acknowledged")))[0] != payload:
            seen = f"{_text(known[0])} ({known[1]}), and {_text(payload)} was acknowledged"
            self._fail(BookiesDiffer(f"a reader was shown entry {entry_id} as {seen}"))

    def read(self, entry: Entry, how: str) -> None:
        """`how` a reader came to it, for the transcript."""
        self.looked["U4"] += 1
        if not entry.payload:
            self._fail(BookiesDiffer(f"a reader was shown the truncate entry {entry.entry_id}: {how}"))
        known = self.shown.setdefault(entry.entry_id, (entry.payload, how))
        if known[0] != entry.payload:
            seen = f"{_text(known[0])} ({known[1]}) and {_text(entry.payload)} ({how})"
            self._fail(BookiesDiffer(f"readers were shown two entries {entry.entry_id}: {seen}"))

    def read_all(self, first: int, last: int, found: Iterable[Entry], due: Iterable[int]) -> None:
        """A reader was given the range without an error; `due` was acknowledged before."""
        ids = [entry.entry_id for entry in found]
        if ids != sorted(set(ids)):
            self._fail(AcknowledgedValueLost(f"entries {first} to {last} came out of order: {ids}"))
        missing = sorted({each for each in due if first <= each <= last}.difference(ids))
        if missing:
            self._fail(AcknowledgedValueLost(f"a reader of {first} to {last} was not given {missing}"))

    # Metadata

    def changed(self, before: LedgerRecord | None, after: LedgerRecord | None) -> None:
        if after is None or after.metadata.terms is None:
            return
        self.records.append(after)
        metadata, terms = after.metadata, terms_of(after.metadata)
        self.looked["U2"] += 1
        if self._holders.setdefault(terms.term, terms.holder) != terms.holder:
            self._fail(TermWithTwoHolders(f"term {terms.term} has two holders"))
        if before is None:
            return
        self._check_transition(before.metadata, metadata)
        begun = before.metadata.fragments != metadata.fragments
        truncated = metadata.state is LedgerState.OPEN and before.metadata.state is LedgerState.IN_RECOVERY
        closed = metadata.is_closed and not before.metadata.is_closed
        # All disks are read for it, which is what a world spends most time on.
        held = self._held(after.ledger_id) if begun or truncated or closed else {}
        if begun:
            self._check_fragments(metadata, held)
        if truncated:
            self._check_truncated(metadata, held)
        elif begun and metadata.state is LedgerState.OPEN:
            self._check_members(metadata, held)
        if closed:
            self._check_closed(metadata, held)

    def _check_transition(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self.looked["P6"] += 1
        was, now = terms_of(before).term, terms_of(after).term
        legal = now == was + 1 and after.state is LedgerState.IN_RECOVERY
        if now == was:
            moves = {(before.state, before.state), (LedgerState.IN_RECOVERY, LedgerState.OPEN)}
            legal = (before.state, after.state) in {*moves, (LedgerState.OPEN, LedgerState.CLOSED)}
        if not legal or before.is_closed != (before.is_closed and after.is_closed):
            self._fail(IllegalTransition(f"{before.state.name} at term {was} became {after.state.name} at {now}"))

    def _held(self, ledger_id: LedgerId) -> Held:
        found = {}
        for bookie in self._world.bookies.values():
            try:
                state = bookie.stored(nothing_survives).get(ledger_id.number)
            except OSError:
                continue  # nothing can be said of a disk that can't be read now
            entries = {} if state is None else state.entries
            found[bookie.bookie_id] = {
                entry_id: decode_entry(_DIGEST, packet, ledger_id.number, entry_id)
                for entry_id, packet in entries.items()
            }
        return found

    def _check_fragments(self, metadata: LedgerMetadata, held: Held) -> None:
        last = metadata.last_fragment.first_entry_id
        begins = metadata.fragments[-2].first_entry_id if len(metadata.fragments) > 1 else last
        for entry_id in range(max(begins, deleted_before(metadata)), last):
            self.looked["G1"] += 1
            if len(values := self._values(metadata, entry_id, held)) != 1:
                self._fail(FragmentNotReplicated(f"entry {entry_id} is {values} on its bookies, before entry {last}"))
        for entry_id, payload in self.acknowledged.items():
            if entry_id < deleted_before(metadata):
                continue
            self.looked["G3"] += 1
            members = self._members(metadata, entry_id)
            known = [held[each].get(entry_id) for each in members if each in held]
            copies = sum(entry is not None and entry.payload == payload for entry in known)
            if copies + len(members) - len(known) < metadata.ack_quorum_size:
                self._fail(TooFewOfAnAcknowledged(f"entry {entry_id} has {copies} copies on {', '.join(members)}"))

    def _check_truncated(self, metadata: LedgerMetadata, held: Held) -> None:
        self.looked["U3"] += 1
        highest = {each: max(held[each], default=-1) for each in metadata.last_fragment.ensemble if each in held}
        if len(set(highest.values())) > 1:
            self._fail(TruncatedTooLittle(f"after a take-over the highest entries are {highest}"))
        self._truncate_entry_id = max(highest.values(), default=self._truncate_entry_id)

    def _check_members(self, metadata: LedgerMetadata, held: Held) -> None:
        """U3, of a bookie that joins: whoever completed the take-over tells a LAC from its truncate entry on. (The next
        take-over tells the LAC of its fencing; its truncate entry reaches all members.) What a member holds below its
        fragment counts for nothing: readers and take-overs ask others for it.
        """
        truncate_entry_id, first = self._truncate_entry_id, metadata.last_fragment.first_entry_id
        for bookie_id in metadata.last_fragment.ensemble:
            self.looked["U3"] += 1
            above = (e for e in held.get(bookie_id, {}).values() if e.entry_id >= max(first, truncate_entry_id + 1))
            before = sorted(entry.entry_id for entry in above if entry.last_add_confirmed < truncate_entry_id)
            if before:
                self._fail(TruncatedTooLittle(f"{bookie_id} is a member and holds {before} of earlier terms"))

    def _check_closed(self, metadata: LedgerMetadata, held: Held) -> None:
        for entry_id in range(deleted_before(metadata), metadata.last_entry_id + 1):
            self.looked["G2"] += 1
            if len(values := self._values(metadata, entry_id, held)) != 1:
                self._fail(LedgerNotReplicated(f"entry {entry_id} is {values} on its bookies"))

    @staticmethod
    def _members(metadata: LedgerMetadata, entry_id: int) -> list[str]:
        ensemble = metadata.fragment_at(entry_id).ensemble
        return [ensemble[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)]

    def _values(self, metadata: LedgerMetadata, entry_id: int, held: Held) -> set[bytes | None]:
        members = [each for each in self._members(metadata, entry_id) if each in held]
        found = (held[each].get(entry_id) for each in members)
        return {None if entry is None else entry.payload[:20] for entry in found} or {b""}

    def _fail(self, error: AssertionError) -> None:
        self._world.fail(error)
