"""The ledgers of a listing that become slices without being looked at one by one.

A listing through a gateway comes in columns, with one template for all ledgers that differ in a few numbers only. What
the options ask of a ledger they mostly ask of its template. So one ledger of each template in a page is looked at, and
the others become slices by their numbers.

Not its job: ledgers that are not closed, that are unbounded or of a sink, and options that ask more (`entries`, which
gets these ledgers as records).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bookgate.ledger.ledger_columns import LedgerColumns
from bookgate.ledger.ledger_id import ids_in_scope
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.thinclient.spark.commit_protocol import QUERY_KEY
from bookgate.thinclient.spark.options.read_options import Options
from bookgate.thinclient.spark.reading.planning import Slice, is_wanted, wanted_range
from bookgate.thinclient.spark.reading.pushdown import Bounds


class PlainLedgers:
    """Collects the slices of such ledgers; see the module."""

    def __init__(self, options: Options, bounds: Bounds, shape_of: Callable[[LedgerRecord], LedgerMetadata]) -> None:
        """`shape_of` returns the shape of a ledger's slice, or raises what forbids to read the ledger."""
        self.slices: list[Slice] = []
        self._options = options
        self._shape_of = shape_of
        self._wanted = wanted_range(options, bounds)
        self._asks_each = (
            options.starting_timestamp_ms is not None
            or options.ledger_ids is not None
            or options.passwords is not None
            or options.include_ledger_metadata
            or bounds.ledger_ids is not None
        )

    def take(self, page: Sequence[LedgerRecord]) -> Iterable[LedgerRecord]:
        """The ledgers of a page that are not plain."""
        if self._asks_each or not isinstance(page, LedgerColumns):
            return page
        first, last = self._wanted.first, self._wanted.last
        shapes: dict[int, LedgerMetadata | None] = {}
        others: list[LedgerRecord] = []
        ledger_ids = ids_in_scope(page.scope_id, page.ledger_ids)
        for index, (template, ledger_id, version, end, length) in enumerate(
            zip(page.template_of, ledger_ids, page.versions, page.last_entry_ids, page.lengths, strict=True)
        ):
            if not first <= ledger_id.low <= last:
                continue
            if template not in shapes:
                shapes[template] = self._plain_shape(page[index])
            shape = shapes[template]
            if shape is None:
                others.append(page[index])
            else:
                self.slices.append(Slice(ledger_id, shape, version, end, length, 0, end, length))
        return others

    def _plain_shape(self, record: LedgerRecord) -> LedgerMetadata | None:
        metadata = record.metadata
        if not metadata.is_closed or metadata.is_unbounded or QUERY_KEY in metadata.custom_metadata:
            return None
        return self._shape_of(record) if is_wanted(record, self._options) else None
