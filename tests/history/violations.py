"""A broken invariant is an error of its own: its id, its sentence, what was seen, and the events that show it."""

from __future__ import annotations

from typing import ClassVar

from tests.history.events import Event

_MOST_EVENTS = 20


class InvariantViolated(AssertionError):
    """`seen` is one line; `events` are those concerned, in order."""

    id: ClassVar[str]
    sentence: ClassVar[str]

    def __init__(self, seen: str, *events: Event) -> None:
        super().__init__(seen)
        self.seen = seen
        self.events = events

    def __str__(self) -> str:
        lines = [f"{self.id} does not hold: {self.sentence}", f"  seen: {self.seen}"]
        lines += [f"  {event}" for event in self.events[:_MOST_EVENTS]]
        if len(self.events) > _MOST_EVENTS:
            lines.append(f"  and {len(self.events) - _MOST_EVENTS} more events")
        return "\n".join(lines)


class AcknowledgedEntryLost(InvariantViolated):
    id = "P1"
    sentence = (
        "an acknowledged entry is readable with the same bytes from its fragment's ensemble while at most "
        "ack quorum - 1 of its bookies are lost"
    )


class ClosedBelowLac(InvariantViolated):
    id = "P2"
    sentence = "a closed ledger has one closer, and its last entry is at least the LAC of every client that wrote to it"


class TooFewCopies(InvariantViolated):
    id = "P3"
    sentence = "closed: every id up to the last entry has at least ack quorum copies in its fragment"


class OutOfOrder(InvariantViolated):
    id = "P4"
    sentence = "entries read back in the order written"


class BadFragments(InvariantViolated):
    id = "P5"
    sentence = "fragment first ids strictly increase, the first is 0, no bookie twice in an ensemble"


class IllegalTransition(InvariantViolated):
    id = "P6"
    sentence = (
        "metadata moves OPEN to CLOSED by the owner, or OPEN to IN_RECOVERY to CLOSED; version + 1 a change; "
        "last entry and length are set once"
    )


class FenceBroken(InvariantViolated):
    id = "P7"
    sentence = (
        "a fenced bookie accepts no normal add; the fence survives a restart and exists for ledgers the bookie never "
        "saw"
    )


class NegativeTakenBack(InvariantViolated):
    id = "P8"
    sentence = (
        "negatives are monotone: once a fencing read was answered no-such-entry, that bookie never accepts that entry "
        "from an older writer"
    )


class LacAheadOfQuorum(InvariantViolated):
    id = "P9"
    sentence = "a client's LAC moves only over a contiguous prefix at ack quorum; adds are acknowledged in order"


class DirtyRead(InvariantViolated):
    id = "P10"
    sentence = "a confirmed read never returns an id above the LAC known to the reader, nor above the sealed end"


class RecoveriesDisagree(InvariantViolated):
    id = "P11"
    sentence = "two recoverers agree on the last entry, or one loses the version check"


class NoProgress(InvariantViolated):
    id = "P12"
    sentence = "progress: once a quorum stays connected, recovery ends and appends succeed"


class ReplayLost(InvariantViolated):
    id = "S1"
    sentence = (
        "LastLogMark is never ahead of what index and entry logs hold durably: replay from it loses nothing "
        "acknowledged, and replaying twice equals once"
    )


class LivingLedgerCollected(InvariantViolated):
    id = "S2"
    sentence = (
        "no ledger present in the metadata is ever collected; an extent goes only when no live ledger points into it"
    )


class DamageAnsweredAsMissing(InvariantViolated):
    id = "S3"
    sentence = "a torn or corrupt record is detected and answered as an I/O error, never as no-such-entry"


class DeniedWhatItLost(InvariantViolated):
    id = "S8"
    sentence = (
        "a bookie that can't exclude that it lost acknowledged data never answers no-such-entry or no-such-ledger for "
        "it: it refuses the start, or answers unknown until the ledger is verified"
    )


class StartedOnForeignDirectory(InvariantViolated):
    id = "S4"
    sentence = "a cookie that does not match refuses the start"


class AcknowledgedBeforeSync(InvariantViolated):
    id = "S5"
    sentence = (
        "an acknowledgement with sync on leaves only after fdatasync of the file that holds the record returned, also "
        "across a journal roll"
    )


class FenceNotDurable(InvariantViolated):
    id = "S6"
    sentence = "a fence is durable before its answer leaves, also when the write cache is empty"


class WrongKeyAccepted(InvariantViolated):
    id = "S7"
    sentence = "the ledger's master key is checked against the stored one also after a restart"


class LedgersAliased(InvariantViolated):
    id = "D1"
    sentence = "(scope, id) never aliases (0, id): paths, cache keys, index keys, partitions"


class WatchWentBack(InvariantViolated):
    id = "M1"
    sentence = "watch answers for one ledger have strictly growing versions, none twice"


class NewestNotDelivered(InvariantViolated):
    id = "M2"
    sentence = "the newest version is always delivered in the end; a removal exactly once, then silence"


class ResumedWatchMissed(InvariantViolated):
    id = "M3"
    sentence = "a resumed watch misses nothing, on whichever gateway, over store disconnects and expiries"


class ReadBackwards(InvariantViolated):
    id = "M4"
    sentence = "a client never sees metadata older than what it has seen, over gateway switches"


class BadListing(InvariantViolated):
    id = "M5"
    sentence = (
        "Iterate is ascending, without duplicates, has every ledger that existed throughout and none that never "
        "existed, and ends with the end mark or an error"
    )


class LostOutcomeMisjudged(InvariantViolated):
    id = "M6"
    sentence = "a Create or Write whose outcome was lost resolves to exactly one winner"


class StoreWatchesLeft(InvariantViolated):
    id = "M7"
    sentence = "store watches = distinct watched ledgers (plus a constant), zero after the last subscriber has gone"


class CopyDiffers(InvariantViolated):
    id = "R1"
    sentence = "a repair stores entries byte for byte as another bookie of the fragment holds them"


class CopiesLost(InvariantViolated):
    id = "R2"
    sentence = "a repair leaves each entry at least as many good copies, at bookies that metadata names, as it had"


class TwiceInAnEnsemble(InvariantViolated):
    id = "R4"
    sentence = "no ensemble that a repair has written names a bookie twice"


class MarkMadeAgainLost(InvariantViolated):
    id = "R8"
    sentence = "a mark that is made again while a worker looks survives that worker"


class RepairNotDurable(InvariantViolated):
    id = "R3"
    sentence = "metadata names a bookie for a fragment only after every id due there is durable on it"


class NotRepaired(InvariantViolated):
    id = "R5"
    sentence = "after faults cease every ledger with a lost copy is repaired, or listed as unrecoverable"


class FencedWithoutNeed(InvariantViolated):
    id = "R6"
    sentence = (
        "auto-recovery fences no ledger before a member of its last ensemble has been lost for the grace, and none "
        "whose members are there"
    )


class RepairChangedMore(InvariantViolated):
    id = "R7"
    sentence = "a repair replaces members of complete fragments, and changes nothing else"


class TargetNotFenced(InvariantViolated):
    id = "R9"
    sentence = "a bookie that takes a place in a closed ledger is fenced for it"


class NewLifeTookOldAdd(InvariantViolated):
    id = "R9"
    sentence = "a new life of a bookie id takes no normal add to an older ledger that names the id or is closed"


class UnknownTakenForMissing(InvariantViolated):
    id = "R10"
    sentence = "no ledger stays listed as unrecoverable of which every entry has a copy where the metadata say"


class ActedWhileDisabled(InvariantViolated):
    id = "R11"
    sentence = "while auto-recovery is disabled nothing is marked and nothing fenced"


class MarkedTooEarly(InvariantViolated):
    id = "R13"
    sentence = "a bookie that is back within the delay causes no mark, and is not replaced"


class PlacementWorse(InvariantViolated):
    id = "R14"
    sentence = "no repair leaves a write set in fewer racks than it was in, unless the worker has counted it"


class CopiesBeyondTheBudget(InvariantViolated):
    id = "R15"
    sentence = "what a worker reads and stores stays within its budget and that of last copies"


class SeveralAuditors(InvariantViolated):
    id = "R12"
    sentence = "one auditor acts; two, for a moment, only repeat marks, and take nothing from what a mark says"


class NeededCopyCollected(InvariantViolated):
    id = "R16"
    sentence = (
        "collecting surplus copies never deletes a ledger that is locked, not closed, or for which metadata names this "
        "bookie"
    )


class ClaimOutlived(InvariantViolated):
    id = "R17"
    sentence = "locks, votes and watches of an expired session or lease have no effect after its end"


class DeniedCallChanged(InvariantViolated):
    id = "A1"
    sentence = "a call that the policy denies changes nothing"


class QuotaExceeded(InvariantViolated):
    id = "A2"
    sentence = "where one gateway creates, no owner has more ledgers than its quota"


class PolicyOutlived(InvariantViolated):
    id = "A3"
    sentence = "a bookie decides by the policy that counts when the request is read"


class StrangerServed(InvariantViolated):
    id = "A4"
    sentence = (
        "whom the policy allows nothing is told EUA by bookies and nothing else, and nothing that it sends is stored, "
        "fences a ledger or is told to others"
    )


class LedgerNotKept(InvariantViolated):
    id = "A5"
    sentence = "a gateway shows no ledger and no password to whom the policy keeps them from"


class PeerIgnored(InvariantViolated):
    id = "R18"
    sentence = "Bookgate honours the marks, locks and votes of BookKeeper's auditors, workers and collectors"


class FragmentNotReplicated(InvariantViolated):
    id = "G1"
    sentence = "in every fragment but the last, every entry is on its whole write set"


class LedgerNotReplicated(InvariantViolated):
    id = "G2"
    sentence = "closed: every entry of a fully replicated ledger is on its whole write set"


class TooFewOfAnAcknowledged(InvariantViolated):
    id = "G3"
    sentence = "an acknowledged entry is on ack quorum bookies of its fragment, whatever changes"


class TermWithTwoHolders(InvariantViolated):
    id = "U2"
    sentence = "a term has one holder"


class TruncatedTooLittle(InvariantViolated):
    id = "U3"
    sentence = "after a take-over no member of the last fragment holds an entry above the truncate entry"


class BookiesDiffer(InvariantViolated):
    id = "U4"
    sentence = "no two readers are shown different entries of one id, and none a truncate entry"


class AcknowledgedValueLost(InvariantViolated):
    id = "U5"
    sentence = "an acknowledged value stays readable at its id, in order"


class AppendedTwice(InvariantViolated):
    id = "T1"
    sentence = "a number of a producer is in the stream once, in order, whoever writes"


class TimeFell(InvariantViolated):
    id = "T2"
    sentence = "the times of entries never fall"


class TrimmedBeforeCursor(InvariantViolated):
    id = "T4"
    sentence = "a retention that keeps records for cursors deletes nothing that a cursor has not committed"


class CursorMovedBack(InvariantViolated):
    id = "T6"
    sentence = "a cursor moves up only, and past nothing that none of its consumers was given"


class CollectedTooMuch(InvariantViolated):
    id = "U7"
    sentence = (
        "a bookie deletes no entry at or above the watermark, and none below it before the metadata have had that "
        "watermark for a whole period"
    )
