"""Carries out `spark.commit_protocol` on the driver: claims, looks ledgers up, deletes leftovers, commits, aborts.

To look up the ledgers of a query, the ids of the scope are listed each time, since ids say nothing about time. Metadata
are read only of ledgers that this start of the query (or batch write) has not found irrelevant for good: ledgers of
others, and those of earlier batches that are committed and marked.

A listing that lacks a committed ledger would have a write committed twice, or deleted as left over: the client that a
`Committer` is given must demand complete listings, unless no other driver can have the id of the write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from bookgate.ledger.errors import (
    BKException,
    IllegalOpException,
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
    UnknownOutcomeException,
    WriteException,
)
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord, require_same
from bookgate.thinclient.spark.commit_protocol import (
    MOST_NAMED,
    QUERY_KEY,
    SinkState,
    Verdict,
    Write,
    goes_after,
    judge,
    leads_not_shown,
    owner_of,
    settled,
    sink_state,
    summary,
    with_claim,
    with_mark,
)
from bookgate.thinclient.spark.offsets import LedgerIds

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_CHANGED_AT_ONCE = 16
_READ_AT_ONCE = 10_000
_TRIES = 5
_REMEMBERED_STARTS = 100


class LostCommitException(WriteException):
    """Another driver took this write over during the commit; this driver committed nothing of it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A ledger that a task wrote and closed."""

    ledger_id: LedgerId
    entries: int


class Lookups:
    """The ledgers that a start of a query need not look up again, kept in this process."""

    def __init__(self) -> None:
        self._settled: dict[str, LedgerIds] = {}

    def settled(self, start: str) -> LedgerIds:
        """Their ids."""
        return self._settled.get(start, LedgerIds())

    def note(self, start: str, ids: LedgerIds) -> None:
        """Remembers them after a commit."""
        self._settled.pop(start, None)
        self._settled[start] = ids
        while len(self._settled) > _REMEMBERED_STARTS:
            del self._settled[next(iter(self._settled))]


@dataclass(frozen=True, slots=True)
class _Look:
    """A lookup of a query. `listed`: the ids of all ledgers; `others`: those that do not belong to the query."""

    records: list[LedgerRecord]
    listed: LedgerIds
    others: LedgerIds


class Committer:
    """Commits and aborts writes in one scope. `start` names a start of a query, or a batch write."""

    def __init__(self, client: BookKeeper, start: str, lookups: Lookups, scope_id: int = 0) -> None:
        self._client = client
        self._scope_id = scope_id
        self._ledgers = client.ledger_manager
        self._start = start
        self._lookups = lookups

    def commit(self, write: Write, written: Sequence[Written]) -> None:
        """Carries out steps 1 to 5 of the protocol. May be called again.

        Args:
            write: The write to commit.
            written: The ledgers of the attempts that Spark chose.

        Raises:
            WriteException: A ledger is not as its task left it.
            LostCommitException: Another driver took the write over.
            IllegalOpException: A later write of the query is committed.
            UnauthorizedAccessException: The policy hides ledgers of the scope from this client.
            BKException: The client's error; it leaves open whether the write was committed.
        """
        if not written:
            return
        own = {each.ledger_id.low: each.entries for each in written}
        records = self._checked(written)
        state = sink_state(records[0])
        if state is not None and state.is_committed_lead:
            self._mark(judge(records, write).unmarked)
            return
        records = self._claimed(write, records)
        look, verdict = self._clean(write, own, owner_of(records[0]))
        self._mark(verdict.unmarked)
        if (later := verdict.overtaken_by) is not None and (state := sink_state(later)) is not None:
            raise IllegalOpException(
                f"ledger {later.ledger_id} says that {state.write} is committed, and {write} is to be: the query's "
                "checkpoint is an older copy, or another driver has taken the query over. Give it a new checkpoint"
            )
        if verdict.disputed_by is not None:
            raise WriteException(
                f"ledger {verdict.disputed_by.ledger_id} of another owner says that {write} is committed. If it is, "
                "under earlier credentials, repeat it once with these; else delete that ledger, and write again"
            )
        if verdict.committed_by is not None:
            _log.warning("%s is committed already, as ledger %s says", write, verdict.committed_by.ledger_id)
            self._deleted(records)
        else:
            lead = self._pass_commit_point(write, records[0], own)
            self._mark([(record, lead.ledger_id.low) for record in records[1:]])
            _log.info("event=sink_committed write=%r wrote=%r", str(write), summary(own))
        self._lookups.note(self._start, look.others.with_more(settled(look.records, write, look.listed)))

    def abort(self, write: Write) -> None:
        """Deletes the ledgers of a write, unless it is committed."""
        _, verdict = self._clean(write)
        self._mark(verdict.unmarked)
        if verdict.committed_by is not None:
            _log.warning("%s is committed; it is not deleted", write)

    def _checked(self, written: Sequence[Written]) -> list[LedgerRecord]:
        """The records in ascending order, each as its task left it (step 1)."""
        expected = {each.ledger_id: each.entries for each in written}
        records = []
        for ledger_id, outcome in zip(sorted(expected), self._ledgers.read_many(sorted(expected)), strict=True):
            if isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
                raise LostCommitException(f"ledger {ledger_id} of a task was deleted: by another driver of this query?")
            if isinstance(outcome, BKException):
                raise outcome
            metadata, entries = outcome.metadata, expected[ledger_id]
            if not metadata.is_closed or metadata.last_entry_id + 1 != entries:
                raise WriteException(
                    f"ledger {ledger_id} is {metadata.state.name} with {metadata.last_entry_id + 1} entries; its task "
                    f"closed it with {entries}"
                )
            records.append(outcome)
        owners = set(map(owner_of, records))
        if len(owners) > 1 or len(records) > MOST_NAMED:
            raise WriteException(
                f"the {len(records)} ledgers of a write have {len(owners)} owners; a write has one owner, and at most "
                f"{MOST_NAMED} ledgers"
            )
        return records

    def _claimed(self, write: Write, records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        """The records with their claims (step 2)."""
        lead, *others = records
        number = lead.ledger_id.low

        def is_claimed(state: SinkState) -> bool:
            return state.claimed_for == unsigned(number)

        def claim(record: LedgerRecord) -> LedgerRecord:
            return self._changed(record, lambda metadata: with_claim(metadata, number), is_claimed)

        try:
            return [lead, *_each(claim, others)]
        except NoSuchLedgerExistsOnMetadataServerException as error:
            raise LostCommitException(f"{write} was taken over by another driver of this query") from error

    def _clean(self, write: Write, own: Collection[int] = (), owner: bytes | None = None) -> tuple[_Look, Verdict]:
        """Deletes leftovers (step 3). Looks again when a ledger has changed meanwhile."""
        for _ in range(_TRIES):
            look = self._look(write.query)
            verdict = judge(look.records, write, own, owner)
            if self._deleted(verdict.left_over):
                return look, verdict
        raise WriteException(f"{write}: what is left over of it keeps changing; does another driver write it?")

    def _look(self, query: str) -> _Look:
        known = self._lookups.settled(self._start)
        listed = self._listed()
        records, others = [], []
        for record in self._read(listed.minus(known)):
            if record.metadata.custom_metadata.get(QUERY_KEY) == query.encode():
                records.append(record)
            else:
                others.append(record.ledger_id.low)
        records += self._read(leads_not_shown(records))
        return _Look(records, listed, listed.both(known).with_more(others))

    def _listed(self) -> LedgerIds:
        with _what_is_missing(self._scope_id):
            return LedgerIds(each for ids in self._ledgers.ledger_ranges(self._scope_id) for each in ids)

    def _read(self, numbers: Iterable[int]) -> Iterator[LedgerRecord]:
        """The records of the ledgers that exist."""
        wanted = [LedgerId(self._scope_id, number) for number in numbers]
        for start in range(0, len(wanted), _READ_AT_ONCE):
            for outcome in self._ledgers.read_many(wanted[start : start + _READ_AT_ONCE]):
                if isinstance(outcome, LedgerRecord):
                    yield outcome
                elif not isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
                    raise outcome

    def _deleted(self, records: Iterable[LedgerRecord]) -> bool:
        """Deletes in this order; stops at one that has changed since it was looked up.

        Raises UnauthorizedAccessException at the end if this client may not delete one.
        """
        denied, told = set[int](), None
        for record in records:
            if goes_after(record, denied):
                continue
            try:
                self._ledgers.remove_record(record)
            except NoSuchLedgerExistsOnMetadataServerException:
                continue
            except MetadataVersionException:
                return False
            except UnauthorizedAccessException as error:
                denied.add(unsigned(record.ledger_id.low))
                told = told or UnauthorizedAccessException(
                    f"ledger {record.ledger_id} is left over of this query, as its metadata say, and this client may "
                    f"not delete it ({error}). Somebody may have forged it, or the query had other credentials: have "
                    "it deleted, and write again"
                )
                continue
            _log.info("event=sink_ledger_deleted ledger=%s", record.ledger_id)
        if told is not None:
            raise told
        return True

    def _pass_commit_point(self, write: Write, lead: LedgerRecord, own: Iterable[int]) -> LedgerRecord:
        """Step 4."""
        try:
            return self._marked(lead, own)
        except NoSuchLedgerExistsOnMetadataServerException as error:
            raise LostCommitException(f"{write} was taken over by another driver of this query") from error

    def _mark(self, unmarked: Sequence[tuple[LedgerRecord, int]]) -> None:
        """Step 5."""

        def mark(pair: tuple[LedgerRecord, int]) -> None:
            record, lead = pair
            # Committed ledgers may be deleted at any time, by any client.
            with suppress(NoSuchLedgerExistsOnMetadataServerException):
                self._marked(record, [lead])

        _each(mark, unmarked)

    def _marked(self, record: LedgerRecord, ids: Iterable[int]) -> LedgerRecord:
        """The ledger with its mark, by whichever driver."""
        return self._changed(record, lambda metadata: with_mark(metadata, ids), lambda state: state.marked)

    def _changed(
        self,
        record: LedgerRecord,
        change: Callable[[LedgerMetadata], LedgerMetadata],
        is_done: Callable[[SinkState], bool],
    ) -> LedgerRecord:
        """The ledger after a compare-and-set of `change`; unchanged if some driver has made the change already."""
        for _ in range(_TRIES):
            try:
                return self._ledgers.write_to(record, change(record.metadata))
            except (MetadataVersionException, UnknownOutcomeException):
                now = self._client.read_record(record.ledger_id)
                require_same(record, now)
                record = now
                state = sink_state(record)
                if state is not None and is_done(state):
                    return record
        raise WriteException(f"the metadata of ledger {record.ledger_id} keep changing; it can't be marked")


def require_listing(client: BookKeeper, scope_id: int) -> None:
    """Asks whether the listings of commits would be allowed, with one that has room for no ledger.

    Raises:
        UnauthorizedAccessException: Commits would fail for want of a right.
    """
    with _what_is_missing(scope_id):
        for _ in client.ledger_manager.ledger_ranges(scope_id, start_after=0, end_before=1):
            pass


@contextmanager
def _what_is_missing(scope_id: int) -> Iterator[None]:
    """Says of a denied listing what the sink needs it for."""
    try:
        yield
    except UnauthorizedAccessException as error:
        raise UnauthorizedAccessException(
            f"{error}; without all ledgers of scope {scope_id} the sink can't tell what is committed: let the policy "
            "show them all to it (ledger.list, ledger.read), or give it a scope of its own (option scopeId)"
        ) from error


def _each(call: Callable[[T], R], arguments: Sequence[T]) -> list[R]:
    """Calls with each argument, concurrently."""
    if len(arguments) < 2:
        return [call(argument) for argument in arguments]
    with ThreadPoolExecutor(min(_CHANGED_AT_ONCE, len(arguments))) as pool:
        return list(pool.map(call, arguments))
