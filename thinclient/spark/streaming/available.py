"""What can be read of a stream's ledgers now: which ledgers exist, and where each ends. Lives on the driver.

Each look lists ids only (or takes them from the option), and reads the metadata, in bulk, of ledgers that are new or
were not closed at the last look; a closed ledger does not change, except that an unbounded one is trimmed. Then the
bookies of the ledgers that are not closed are asked for the last add confirmed, many ledgers concurrently and without
fencing. So a look at a hundred thousand ledgers of which ten are being written is one listing of ids, one bulk read of
ten records, and ten requests to bookies.

The planning uses the same records. A writer may have changed its ensemble since: a task that finds entries on no bookie
of its records reads newer ones. Nor do tasks depend on where fragments begin (`planning.plan`): an open ledger may get
a border below the end of a batch that was planned already (T7).

Uncommitted ledgers of a sink are looked at again each time. Whether they count may depend on a ledger that was read
already (the lead of their write, see `spark.commit_protocol`): leads are remembered as long as a ledger that they name
is still to come, and the first look after a restart looks up the leads read before it. A ledger that the selection
leaves out is left out as long as it exists: its custom metadata count as they were when it was first seen.

A ledger's size in bytes is an estimate unless the ledger is closed: the length that an entry near its end carries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from bookgate.ledger.errors import (
    BKException,
    LedgerTrimmedException,
    MetaStoreException,
    NoSuchLedgerExistsOnMetadataServerException,
)
from bookgate.ledger.ledger_id import NO_ENTRY, LedgerId
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.unbounded import deleted_before
from bookgate.thinclient.spark.commit_protocol import Committed, SinkState, sink_state
from bookgate.thinclient.spark.offsets import End, LedgerIds, Range, StreamOffset, Trimmed
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.reading.entries import length_at, listing_ends, read_records
from bookgate.thinclient.spark.reading.planning import (
    Slice,
    TemplateTable,
    check_digest_type,
    has_readable_end,
    is_wanted,
    opened_with,
    readable_record,
    wanted_range,
)
from bookgate.thinclient.spark.reading.pushdown import Interval
from bookgate.thinclient.spark.reading.slice_reads import FIRST_PAUSE_SECONDS

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 16
_KEPT_RECORDS = 10_000
_NAMED_AT_MOST = 10


class Available:
    """The ledgers of one stream that are not done."""

    def __init__(self, options: Options, pause: Callable[[float], None] = time.sleep) -> None:
        self._options = options
        self._pause = pause
        self._closed: dict[int, End] = {}
        self._left_out = LedgerIds()
        self._records: dict[int, LedgerRecord] = {}
        self._lengths: dict[int, tuple[int, int]] = {}
        self._lost: set[int] = set()
        self._trimmed: dict[int, int] = {}
        self._leads: list[SinkState] = []
        self._has_looked = False

    def look(self, client: BookKeeper, offset: StreamOffset) -> tuple[dict[int, End], list[int]]:
        """The ends of ledgers that are not done, and the ids of ledgers that were begun or requested by id and are
        gone.

        Raises UnauthorizedAccessException, DigestMatchException, or the error that keeps an open ledger's end unknown.
        """
        listed = self._listed(client)
        # One that this listing lacks is gone: a client is never shown older metadata than before (M4).
        self._left_out = self._left_out.both(listed)
        self._lost = {each for each in self._lost if each not in offset.done}
        self._trimmed = {each: first for each, first in self._trimmed.items() if each not in offset.done}
        self._closed = {each: end for each, end in self._closed.items() if each in listed and each not in offset.done}
        seen = listed.minus(offset.done).minus(self._left_out)
        asked = [each for each in seen if each not in self._closed]
        asked += [each for each in offset.next_entries if each not in listed]
        records, gone = read_records(client, self._options.scope_id, asked)
        wanted = self._wanted([record for record in records if record.ledger_id.low in listed])
        if not self._options.include_uncommitted:
            wanted = self._committed(client, wanted, listed, offset)
        ends = self._ends(client, wanted)
        self._keep(wanted, ends)
        missing = [each for each in gone if each in offset.next_entries or self._options.ledger_ids is not None]
        return {**self._closed, **ends}, missing

    def _listed(self, client: BookKeeper) -> LedgerIds:
        if self._options.ledger_ids is not None:
            return LedgerIds(self._options.ledger_ids)
        after, before = listing_ends(self._options.scope_id, wanted_range(self._options))
        found: list[int] = []
        for ids in client.ledger_manager.ledger_ranges(self._options.scope_id, after, before):
            found.extend(ids)
        return LedgerIds(found)

    def _wanted(self, records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        chosen = [record for record in records if is_wanted(record, self._options)]
        taken = {record.ledger_id for record in chosen}
        others = [record.ledger_id.low for record in records if record.ledger_id not in taken]
        if others:
            self._left_out = self._left_out.with_more(others)
        for record in chosen:
            check_digest_type(record, self._options.digest_type)
        return [record for record in chosen if has_readable_end(record, self._options)]

    def _committed(
        self, client: BookKeeper, records: Sequence[LedgerRecord], listed: LedgerIds, offset: StreamOffset
    ) -> list[LedgerRecord]:
        """The records without those ledgers of sinks that do not count yet."""
        seen = Committed(self._leads)
        seen.show(records)
        leads, _ = read_records(
            client, self._options.scope_id, seen.unknown_leads(each for each in records if not seen.counts(each))
        )
        seen.show(leads)
        waiting = [record.ledger_id.low for record in records if not seen.counts(record)]
        if waiting and len(offset.done) and not self._has_looked:
            self._show_leads_of_before(client, seen, offset, max(waiting))
        self._has_looked = True
        taken = {record.ledger_id.low for record in records if seen.counts(record)}
        if seen.leads:
            to_come = listed.minus(offset.done).minus(self._left_out).minus(LedgerIds({*taken, *self._closed}))
            self._remember(seen.leads, list(to_come))
        return [record for record in records if record.ledger_id.low in taken]

    def _remember(self, leads: Sequence[SinkState], to_come: Sequence[int]) -> None:
        """Keeps new leads, and old ones that name a ledger still to come."""
        old = {lead.origin for lead in self._leads}
        # A ledger that a new lead names may have appeared behind the listing's position; the next listing has it.
        self._leads = [lead for lead in leads if lead.origin not in old or any(map(lead.names, to_come))]

    def _show_leads_of_before(self, client: BookKeeper, seen: Committed, offset: StreamOffset, last: int) -> None:
        # A lead has the lowest id of its write; in scopes ids are compared without sign there, and all may be lower.
        below = Interval(last=last - 1) if self._options.scope_id == 0 else Interval()
        after, before = listing_ends(self._options.scope_id, below)
        for page in client.list_ledgers(scope_id=self._options.scope_id, start_after=after, end_before=before):
            done = [record for record in page if record.ledger_id.low in offset.done]
            seen.show(record for record in done if (state := sink_state(record)) and state.is_committed_lead)

    def _keep(self, records: Sequence[LedgerRecord], ends: Mapping[int, End]) -> None:
        """Remembers what the next look or the planning needs."""
        self._records = {record.ledger_id.low: record for record in records[:_KEPT_RECORDS]}
        still_open = {record.ledger_id.low for record in records if not record.metadata.is_closed}
        self._lengths = {each: known for each, known in self._lengths.items() if each in still_open}
        for record in (each for each in records if each.metadata.is_closed):
            number = record.ledger_id.low
            # A trim moves the first entry of a closed unbounded ledger, which is therefore looked at again.
            if not record.metadata.is_unbounded:
                self._closed[number] = ends[number]

    # Ends

    def _ends(self, client: BookKeeper, records: Sequence[LedgerRecord]) -> dict[int, End]:
        last = self._last_entries(client, records)
        sizes = self._sizes(client, records, last)
        ends = {}
        for record in records:
            number = record.ledger_id.low
            following = last[number] + 1
            end = End(following, record.metadata.is_closed, sizes[number], deleted_before(record.metadata))
            ends[number] = self._bounded(number, end)
        return ends

    def _bounded(self, number: int, end: End) -> End:
        """The end limited by `endingOffsets`; a ledger that is not read to its real end is never done."""
        bound = (self._options.ending_offsets or {}).get(number)
        if bound is None or bound >= end.next_entry_id:
            return end
        return replace(end, next_entry_id=bound, closed=False, size=end.size_of(bound))

    def _last_entries(self, client: BookKeeper, records: Sequence[LedgerRecord]) -> dict[int, int]:
        """Last adds confirmed by ledger id. Bookies that do not respond are asked again, `numRetries` times."""
        last: dict[int, int] = {}
        left = list(records)
        for attempt in range(self._options.num_retries + 1):
            outcomes = self._asked(client, left)
            failed = []
            for record, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, BKException):
                    failed.append((record, outcome))
                else:
                    last[record.ledger_id.low] = outcome
            if not failed:
                return last
            record, error = failed[0]
            what = f"up to where ledger {record.ledger_id} may be read can't be known: {error}"
            if attempt == self._options.num_retries:
                raise type(error)(what)
            _log.warning("%s; %d ledgers are asked again", what, len(failed))
            left = [record for record, _ in failed]
            self._pause(FIRST_PAUSE_SECONDS * 2**attempt)
        return last

    def _asked(self, client: BookKeeper, records: Sequence[LedgerRecord]) -> list[int | BKException]:
        """Last adds confirmed, requested together for all ledgers with the same password."""
        by_password: dict[bytes, list[int]] = {}
        for index, record in enumerate(records):
            by_password.setdefault(self._options.password_of(record), []).append(index)
        outcomes: dict[int, int | BKException] = {}
        for password, indexes in by_password.items():
            some = client.last_adds_confirmed([records[index] for index in indexes], password)
            outcomes.update(zip(indexes, some, strict=True))
        return [outcomes[index] for index in range(len(records))]

    def _sizes(self, client: BookKeeper, records: Sequence[LedgerRecord], last: Mapping[int, int]) -> dict[int, int]:
        """Estimates of payload bytes. An open ledger is measured again when it has twice the entries."""
        sizes, measured = {}, []
        for record in records:
            number = record.ledger_id.low
            entries = last[number] + 1
            known = self._lengths.get(number, (0, 0))
            if record.metadata.is_closed:
                sizes[number] = record.metadata.length
            elif entries >= 2 * known[0] and entries:
                measured.append((record, last[number]))
            else:
                sizes[number] = known[1] * entries // max(1, known[0])
        if measured:
            with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
                lengths = pool.map(lambda each: self._measure(client, *each), measured)
            for (record, end), length in zip(measured, lengths, strict=True):
                number = record.ledger_id.low
                self._lengths[number] = (end + 1, length)
                sizes[number] = length
        return sizes

    def _measure(self, client: BookKeeper, record: LedgerRecord, last: int) -> int:
        with client.open_record(readable_record(record, last), password=self._options.password_of(record)) as handle:
            return length_at(handle.read(last, last))

    # Planning

    def slices(self, client: BookKeeper, found: Sequence[Range], sizes: Mapping[int, int]) -> list[Slice]:
        """The slices of these ranges, with the sizes that the batch was planned with first. Ledgers that are gone
        meanwhile are data loss, as entries are that were trimmed meanwhile.
        """
        known = {piece.ledger_id: self._usable(piece) for piece in found}
        unknown = [number for number, record in known.items() if record is None]
        records, gone = read_records(client, self._options.scope_id, unknown)
        known.update({record.ledger_id.low: record for record in records})
        self.lose([piece for piece in found if piece.ledger_id in set(gone)])
        shapes = TemplateTable(with_ledger_columns=self._options.include_ledger_metadata)
        slices, trimmed = list[Slice](), list[Trimmed]()
        for piece in found:
            if (record := known[piece.ledger_id]) is None:
                continue
            whole = self._whole(client, shapes, record, piece)
            if piece.first < whole.first_entry_id:
                trimmed.append(Trimmed(piece.ledger_id, piece.first, whole.first_entry_id))
            if (part := _part(whole, piece, sizes)) is not None:
                slices.append(part)
        self.lose_trimmed(trimmed)
        return slices

    def _usable(self, piece: Range) -> LedgerRecord | None:
        record = self._records.get(piece.ledger_id)
        return record if record is not None and (piece.last is not None or record.metadata.is_closed) else None

    def _whole(self, client: BookKeeper, shapes: TemplateTable, record: LedgerRecord, piece: Range) -> Slice:
        """All that is left of the ledger up to its end, or that of the piece if the ledger goes on."""
        if piece.last is None and not record.metadata.is_closed:
            raise MetaStoreException(
                f"ledger {record.ledger_id} is {record.metadata.state.name} in the metadata, and the query's "
                "checkpoint has it as closed: what the gateway knows is older; start the query again"
            )
        password = self._options.password_of(record)
        client.open_record(record, password=password)
        record = opened_with(record, password)
        entries, length = self._lengths.get(piece.ledger_id, (0, 0))
        if piece.last is not None:
            length = length * (piece.last + 1) // max(1, entries)
        return shapes.slice_of(readable_record(record, NO_ENTRY if piece.last is None else piece.last, length))

    def lose(self, pieces: Sequence[Range]) -> None:
        """Data loss: an error that names ledgers and entries; without failOnDataLoss a warning, once per ledger."""
        told = [self._told(piece) for piece in pieces if piece.ledger_id not in self._lost]
        if not told:
            return
        what = f"ledgers were deleted before they were read to their end: {_named(told)}"
        if self._options.fail_on_data_loss:
            raise NoSuchLedgerExistsOnMetadataServerException(f"{what}; failOnDataLoss=false goes on without them")
        self._lost.update(piece.ledger_id for piece in pieces)
        _log.warning("%s; went on without them", what)

    def lose_trimmed(self, found: Sequence[Trimmed]) -> None:
        """The same for entries that a trim has deleted before the stream came to them."""
        new = [each for each in found if self._trimmed.get(each.ledger_id, NO_ENTRY) < each.available]
        if not new:
            return
        told = [self._told(Range(each.ledger_id, each.first, each.available - 1)) for each in new]
        what = f"a trim has deleted entries before they were read, of ledgers {_named(told)}"
        if self._options.fail_on_data_loss:
            raise LedgerTrimmedException(f"{what}; failOnDataLoss=false goes on without them", new[0].available)
        self._trimmed.update((each.ledger_id, each.available) for each in new)
        _log.warning("%s; went on without them", what)

    def _told(self, piece: Range) -> str:
        entries = f"from {piece.first} on" if piece.last is None else f"{piece.first} to {piece.last}"
        return f"{LedgerId(self._options.scope_id, piece.ledger_id)} (entries {entries})"


def _part(whole: Slice, piece: Range, sizes: Mapping[int, int]) -> Slice | None:
    """What is left of the piece. The size is the same whatever a trim has deleted before it, so that a batch which is
    repeated after a trim is cut into the same tasks (T7).
    """
    first = max(piece.first, whole.first_entry_id)
    last = whole.end if piece.last is None else min(whole.end, piece.last)
    if first > last:
        return None
    share = whole.length * (last + 1 - first) // (whole.end + 1)
    return whole._replace(first_entry_id=first, last_entry_id=last, size=sizes.get(piece.ledger_id, share))


def _named(told: Sequence[str]) -> str:
    more = f" and {len(told) - _NAMED_AT_MOST} more" if len(told) > _NAMED_AT_MOST else ""
    return f"{', '.join(told[:_NAMED_AT_MOST])}{more}"
