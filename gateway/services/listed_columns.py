"""The ledgers of one response of Iterate, as columns (docs/protocol/gateway.md#columns).

A page that has a ledger which columns can't carry is sent as single ledgers instead: metadata that can't be read, and a
password that the caller may not have, since a template would tell which ledgers share one.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookgate.gateway.services.ledger_access import ScopeView, owner_of
from bookgate.gateway.stores.listed_ledgers import Listed
from bookgate.ledger.errors import MetadataFormatException
from bookgate.ledger.ledger_columns import NOT_KNOWN
from bookgate.ledger.metadata_codec import check_fields, stored_messages
from bookgate.ledger.metadata_store import RawLedgerRecord
from bookgate.ledger.metadata_templates import take_numbers
from bookgate.protos.bookkeeper.gateway.v1.ledger_metadata_service_pb2 import LedgerColumns
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

_NOT_SHOWN = -1


class NotInColumnsError(Exception):
    """The page has a ledger that columns can't carry."""


class ColumnsBuilder:
    """Takes the ledgers of a page in order, a slice at a time."""

    def __init__(self, view: ScopeView | None) -> None:
        """`view`: what the caller may see; None: everything."""
        self._view = view
        self._index: dict[bytes, int] = {}
        """The templates, numbered if they are shown."""
        self._templates: list[bytes] = []
        self._rows: list[tuple[int, ...]] = []
        self.left_out = 0
        """Ledgers that the caller may not see."""

    def take(self, part: Sequence[Listed]) -> None:
        """Raises NotInColumnsError."""
        records = [each.outcome for each in part if isinstance(each.outcome, RawLedgerRecord)]
        if len(records) < len(part):
            raise NotInColumnsError
        try:
            messages = stored_messages([record.data for record in records])
            for record, message in zip(records, messages, strict=True):
                self._add(record, message)
        except MetadataFormatException:
            raise NotInColumnsError from None

    def _add(self, record: RawLedgerRecord, message: LedgerMetadataFormat) -> None:
        """Raises NotInColumnsError, MetadataFormatException."""
        numbers = take_numbers(message)
        if numbers is None:
            raise NotInColumnsError
        key = message.SerializePartialToString()
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = self._number(message, key)
        if index == _NOT_SHOWN:
            self.left_out += 1
            return
        created_ms = NOT_KNOWN if record.created_ms is None else record.created_ms
        self._rows.append((index, record.ledger_id.low, record.version, *numbers, created_ms))

    def _number(self, template: LedgerMetadataFormat, key: bytes) -> int:
        """Raises NotInColumnsError, MetadataFormatException."""
        check_fields(template)
        if self._view is not None:
            owner = owner_of(template)
            if not self._view.shows(owner):
                return _NOT_SHOWN
            if template.HasField("password") and not self._view.shows_password(owner):
                raise NotInColumnsError
        self._templates.append(key)
        return len(self._templates) - 1

    @property
    def ledger_ids(self) -> list[int]:
        return [row[1] for row in self._rows]

    def fill(self, message: LedgerColumns, revision: int) -> None:
        """Puts one ledger or more into an empty message."""
        template_of, ledger_ids, versions, last_entry_ids, lengths, ctimes, tokens, created_ms = zip(
            *self._rows, strict=True
        )
        message.templates.extend(self._templates)
        message.template_of.extend(template_of)
        message.ledger_ids.extend(ledger_ids)
        message.versions.extend(versions)
        message.last_entry_ids.extend(last_entry_ids)
        message.lengths.extend(lengths)
        message.ctimes.extend(ctimes)
        message.creator_tokens.extend(tokens)
        message.created_ms.extend(created_ms)
        message.revision = revision
