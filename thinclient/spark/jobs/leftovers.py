"""Leftovers: ledgers of a sink that were never committed, and that no later commit will delete.

The next commit of a query deletes what its earlier attempts left (`spark.commit_protocol`). A batch write without
`writeId` whose driver was killed has no next commit, nor has a stream that is never started again. Their ledgers are
recognised by age: those of a write (a micro-batch, or a batch write) are leftovers if the youngest of them is older
than a given time, which must be longer than any write takes. A ledger of unknown age is never a leftover.

Deleting is safe even if the driver still runs. It follows the protocol: in the order given by `judge`, each ledger only
at the version in which it was seen, and nothing more of a write once one of its ledgers has changed. So either the
driver's commit fails as a whole, or the write stays as a whole. What this client may not delete stays, and what is
claimed for it; all else is deleted.

This is not a Spark job: the caller's process lists the metadata once, and deletes metadata only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from bookgate.ledger.errors import (
    MetadataVersionException,
    NoSuchLedgerExistsOnMetadataServerException,
    UnauthorizedAccessException,
)
from bookgate.ledger.id_set import unsigned
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.core.undeletable import Kept, require_all
from bookgate.thinclient.spark.commit_protocol import Write, goes_after, judge, leads_not_shown, sink_state
from bookgate.thinclient.spark.reading.entries import read_records

if TYPE_CHECKING:
    from bookgate.thinclient.blocking.client import BookKeeper

Leftovers = dict[Write, list[LedgerRecord]]
"""Ledgers by write, in the order in which they must be deleted."""


def leftovers(client: BookKeeper, before_ms: int, scope_id: int = 0) -> Leftovers:
    """The leftovers among all ledgers of a scope.

    A write is judged by all of its ledgers: without its commit, committed ledgers look left over. So from now on the
    client's listings fail where a policy would leave ledgers out.

    Args:
        client: The client to list with.
        before_ms: Milliseconds since 1970. A write is left over if its youngest ledger was created before.
        scope_id: The scope.

    Returns:
        The leftovers by write.

    Raises:
        UnauthorizedAccessException: The policy leaves ledgers of the scope out of this client's listings.
        BKException: The ledgers can't be listed.
    """
    client.ledger_manager.demand_complete_listings()
    records = [record for page in client.list_ledgers(scope_id) for record in page if sink_state(record) is not None]
    leads, _ = read_records(client, scope_id, leads_not_shown(records))
    return left_over([*records, *leads], before_ms)


def left_over(records: Iterable[LedgerRecord], before_ms: int) -> Leftovers:
    """The leftovers in a listing, which must include the leads that claims name."""
    queries: defaultdict[str, list[LedgerRecord]] = defaultdict(list)
    for record in records:
        state = sink_state(record)
        if state is not None:
            queries[state.write.query].append(record)
    writes: defaultdict[Write, list[LedgerRecord]] = defaultdict(list)
    for query, of_query in queries.items():
        for record in judge(of_query, Write(query, _last_batch(of_query))).left_over:
            state = sink_state(record)
            if state is not None:
                writes[state.write].append(record)
    return {write: found for write, found in writes.items() if all(_older(record, before_ms) for record in found)}


def delete(client: BookKeeper, found: Leftovers) -> list[int]:
    """Deletes the leftovers that have not changed since; returns their ids.

    Raises:
        NotAllDeletedException: This client may not delete some; the others are deleted.
        BKException: The metadata can't be changed.
    """
    deleted: list[int] = []
    kept: Kept = {}
    for records in found.values():
        deleted += _delete_write(client, records, kept)
    require_all(len(deleted), kept)
    return deleted


def _delete_write(client: BookKeeper, records: Sequence[LedgerRecord], kept: Kept) -> list[int]:
    """Returns the ids of what was deleted, and adds to `kept` what may not be deleted."""
    deleted: list[int] = []
    stay = set[int]()
    for record in records:
        if goes_after(record, stay):
            kept[record.ledger_id] = None
            continue
        try:
            client.ledger_manager.remove_record(record)
        except NoSuchLedgerExistsOnMetadataServerException:
            continue
        except UnauthorizedAccessException as error:
            kept[record.ledger_id] = error
            stay.add(unsigned(record.ledger_id.low))
            continue
        except MetadataVersionException:
            # A driver is at work on this write, which may be committed by now.
            break
        deleted.append(record.ledger_id.low)
    return deleted


def _last_batch(records: Iterable[LedgerRecord]) -> int:
    return max(state.write.batch for record in records if (state := sink_state(record)) is not None)


def _older(record: LedgerRecord, before_ms: int) -> bool:
    return record.creation_ms is not None and record.creation_ms < before_ms
