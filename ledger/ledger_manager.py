"""Interface of the metadata store: the metadata of ledgers, with compare-and-set.

Not its job: the connection to the store (`metadata_store`), what metadata are (`metadata`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookgate.ledger.bookie_info import Features, features_for
from bookgate.ledger.errors import BKException, MetadataFormatException, NoSuchLedgerExistsOnMetadataServerException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import decode, encode


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A ledger as the store holds it.

    `created_ms` is the creation time that the store recorded, in milliseconds since 1970, if the read returned it. The
    metadata has a creation time of its own only if the client chose to write one.
    """

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int
    created_ms: int | None = field(default=None, compare=False)
    incarnation: int | None = field(default=None, compare=False)
    """The store's number for this creation: a recreated ledger has a higher one. None in records of a listing, from
    older gateways, and from stores that do not tell.
    """

    def is_of(self, former: LedgerRecord) -> bool:
        """Whether this is still the ledger of a former record, not one that was created later with its id: versions
        begin anew with it, and a compare-and-set alone may take the one for the other.

        An older gateway does not tell the incarnation; then only equal metadata count.
        """
        if None in (self.incarnation, former.incarnation):
            return self.metadata == former.metadata
        return self.incarnation == former.incarnation

    def is_another(self, former: LedgerRecord) -> bool:
        """Whether this certainly is another ledger than that of a former record, which was deleted before this one was
        created with its id. Unlike `is_of`, this holds no change of the metadata for a sign of that.
        """
        if None not in (self.incarnation, former.incarnation):
            return self.incarnation != former.incarnation
        tokens = self.metadata.creator_token, former.metadata.creator_token
        return 0 not in tokens and tokens[0] != tokens[1]

    @property
    def needs(self) -> Features:
        """What a bookie has to understand to hold entries of the ledger."""
        return features_for(scoped=self.ledger_id.scope_id != 0, unbounded=self.metadata.is_unbounded)

    @property
    def creation_ms(self) -> int | None:
        """Creation time in milliseconds since 1970: the one in the metadata if present, else the store's."""
        return self.created_ms if self.metadata.ctime_ms is None else self.metadata.ctime_ms


def require_same(former: LedgerRecord, now: LedgerRecord) -> None:
    """Raises NoSuchLedgerExistsOnMetadataServerException if another ledger has the id of the former one by now."""
    if now.is_another(former):
        raise made_anew(former.ledger_id)


def made_anew(ledger_id: LedgerId) -> NoSuchLedgerExistsOnMetadataServerException:
    """The error for a ledger whose id another one has by now."""
    return NoSuchLedgerExistsOnMetadataServerException(
        f"ledger {ledger_id} was deleted, and another one was created with its id"
    )


class RawLedgerRecord(NamedTuple):
    """A `LedgerRecord` whose metadata is still serialised (`metadata_codec`) and unchecked."""

    ledger_id: LedgerId
    data: bytes
    version: int
    created_ms: int | None = None

    def record(self) -> LedgerRecord:
        """Parses the metadata. Raises MetadataFormatException, which names the ledger."""
        try:
            metadata = decode(self.data)
        except MetadataFormatException as error:
            raise MetadataFormatException(f"metadata of ledger {self.ledger_id}: {error}") from error
        return LedgerRecord(self.ledger_id, metadata, self.version, self.created_ms)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """One ledger for `LedgerManager.create_many`; with `ledger_id` None an id of scope 0 is generated."""

    ledger_id: LedgerId | None
    metadata: LedgerMetadata


_LISTED_TOGETHER = 16
"""Ledgers read in one call while their size is unknown."""

LedgerMetadataListener = Callable[[LedgerId, LedgerRecord | None], None]
"""Called on the event loop with the latest record of a ledger, or with None when the ledger was removed (no call
follows).
"""


class LedgerManager(ABC):
    """Ledger metadata with compare-and-set."""

    @abstractmethod
    async def create(self, ledger_id: LedgerId | None, metadata: LedgerMetadata) -> LedgerRecord:
        """Creates a ledger at version 0.

        Args:
            ledger_id: The id to use; None generates one in scope 0.
            metadata: The initial metadata, with its first ensemble.

        Returns:
            The created ledger with its id and version 0.

        Raises:
            LedgerExistException: The given id is in use.
            LedgerIdOverflowException: The generator has no ids left.
            UnknownOutcomeException: The response was lost; the ledger may or may not exist.
        """

    @abstractmethod
    async def read(self, ledger_id: LedgerId) -> LedgerRecord:
        """Reads the metadata of a ledger.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            MetadataFormatException: The stored bytes are not valid metadata.
        """

    @abstractmethod
    async def write(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata if its stored version is `expected_version`.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            expected_version: The version that the caller has read.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the metadata may or may not have been replaced.
        """

    async def write_once(self, ledger_id: LedgerId, metadata: LedgerMetadata, expected_version: int) -> LedgerRecord:
        """Replaces the metadata as `write` does, without a second attempt where the response was lost: others may have
        removed the ledger and created it anew since, at the same version.

        Managers whose `write` makes further attempts override this.

        Args:
            ledger_id: The ledger.
            metadata: The new metadata.
            expected_version: The version that the caller has read.

        Raises:
            BKException: As `write`.
        """
        return await self.write(ledger_id, metadata, expected_version)

    async def write_to(self, record: LedgerRecord, metadata: LedgerMetadata) -> LedgerRecord:
        """Replaces the metadata of the record's ledger as `write` does at its version, but not those of another ledger
        that has its id by now: versions begin anew with each creation.

        Args:
            record: The ledger, as the caller has read it.
            metadata: The new metadata.

        Returns:
            The ledger with the new metadata and the new version.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger, or another one with its id.
            BKException: As `write`.
        """
        # Managers that compare and write in one call override this. Here a ledger that is deleted and created anew in
        # between is recognised too late. So is one that a lagging replica of the store has not seen.
        require_same(record, await self.read(record.ledger_id))
        written = await self.write(record.ledger_id, metadata, record.version)
        require_same(record, written)
        return written if record.incarnation is None else replace(written, incarnation=record.incarnation)

    @abstractmethod
    async def remove(self, ledger_id: LedgerId, expected_version: int | None = None) -> None:
        """Removes a ledger.

        Args:
            ledger_id: The ledger.
            expected_version: The version that the caller has read; None removes any version.

        Raises:
            MetadataVersionException: The stored version is another one.
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger.
            UnknownOutcomeException: The response was lost; the ledger may or may not have been removed.
        """

    async def remove_record(self, record: LedgerRecord) -> None:
        """Removes the record's ledger as `remove` does at its version, but not another one that has its id by now.

        Args:
            record: The ledger, as the caller has read it.

        Raises:
            NoSuchLedgerExistsOnMetadataServerException: The store has no such ledger, or another one with its id.
            BKException: As `remove`.
        """
        require_same(record, await self.read(record.ledger_id))
        await self.remove(record.ledger_id, record.version)

    async def create_many(self, requests: Sequence[CreateRequest]) -> list[LedgerRecord | BKException]:
        """Creates several ledgers, each as `create` does.

        The creates are independent: some may succeed while others fail. Stores that can create many ledgers in one
        round trip override this sequential loop.

        Args:
            requests: The ledgers to create.

        Returns:
            One result per request, in the same order: the created ledger, or the exception of that create.
        """
        return [await _outcome(self.create(request.ledger_id, request.metadata)) for request in requests]

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerRecord | BKException]:
        """Reads several ledgers, each as `read` does.

        Args:
            ledger_ids: The ledgers.

        Returns:
            One result per id, in the same order: the ledger, or the exception of that read.
        """
        return [await _outcome(self.read(ledger_id)) for ledger_id in ledger_ids]

    async def read_listed(self, ledger_ids: Sequence[LedgerId], max_bytes: int) -> list[RawLedgerRecord | BKException]:
        """Reads ledgers of a listing, metadata undecoded, for callers that only forward the bytes.

        Stores that can return the stored bytes override this; the default re-encodes the records of `read_many`.

        Args:
            ledger_ids: Ids that a listing returned, in ascending order.
            max_bytes: Size limit in bytes of metadata: reading stops with the ledger that reaches it.

        Returns:
            Results for a prefix of `ledger_ids`, at least one: the ledger, or the exception of that read.
        """
        found: list[RawLedgerRecord | BKException] = []
        size = 0
        while len(found) < len(ledger_ids) and size < max_bytes:
            for record in await self.read_many(ledger_ids[len(found) : len(found) + _LISTED_TOGETHER]):
                stored = record if isinstance(record, BKException) else _as_raw(record)
                size += 0 if isinstance(stored, BKException) else len(stored.data)
                found.append(stored)
        return found

    def demand_complete_listings(self, demanded: bool = True) -> None:  # noqa: B027 (most have nothing to do)
        """From now on listings fail where ledgers would be left out that this process may not see, or do not any more.

        For whoever concludes from what is not listed. Stores list everything, and need nothing for it.
        """

    @abstractmethod
    def ledger_ranges(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None
    ) -> AsyncIterator[Sequence[int]]:
        """Lists all ledger ids of a scope in strictly ascending `unsigned` order, as bounded, non-empty runs.

        A ledger that exists throughout the listing appears exactly once. A listing that can't be completed raises. It
        never ends early, because garbage collection deletes ledgers that a complete listing lacks.

        Args:
            scope_id: The scope, bits 64–127 of the ledger ids.
            start_after: Lists only ids above this one.
            end_before: Lists only ids below this one.

        Yields:
            Runs of ids, bits 0–63.

        Raises:
            BKException: The listing can't be completed.
        """

    async def scopes(self, start_after: int = 0) -> AsyncIterator[Sequence[int]]:
        """Lists the scopes above `start_after` that have a ledger, ascending by their bits, as non-empty runs.

        A scope whose last ledger is removed meanwhile may be listed or not. The default is that of a store that keeps
        ledgers of scope 0 only: none.
        """
        none: Sequence[Sequence[int]] = ()
        for run in none:
            yield run

    async def ledger_records(
        self, scope_id: int = 0, start_after: int | None = None, end_before: int | None = None, page_size: int = 0
    ) -> AsyncIterator[Sequence[LedgerRecord]]:
        """Like `ledger_ranges`, with the metadata: pages of records in ascending order of id, none empty.

        Ledgers that are deleted meanwhile are left out; one that can't be read ends the listing with its error. No
        page has more than `page_size` records; 0: what suits the store, which here is a run. Stores that list ids and
        metadata together override this.
        """
        async for run in self.ledger_ranges(scope_id, start_after, end_before):
            size = page_size or len(run)
            for start in range(0, len(run), size):
                wanted = [LedgerId(scope_id, number) for number in run[start : start + size]]
                if page := _existing(await self.read_many(wanted)):
                    yield page

    @abstractmethod
    async def register_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Calls `listener` soon with the current state, then after each change; intermediate states may be skipped."""

    @abstractmethod
    async def unregister_listener(self, ledger_id: LedgerId, listener: LedgerMetadataListener) -> None:
        """Removes the listener; an unknown one is ignored. Removing the last listener of a ledger ends the store's
        watch.
        """


def _as_raw(record: LedgerRecord) -> RawLedgerRecord:
    return RawLedgerRecord(record.ledger_id, encode(record.metadata), record.version, record.created_ms)


def _existing(outcomes: Sequence[LedgerRecord | BKException]) -> list[LedgerRecord]:
    """The records; ledgers that were deleted since they were listed are none. Raises other errors."""
    records = []
    for outcome in outcomes:
        if isinstance(outcome, LedgerRecord):
            records.append(outcome)
        elif not isinstance(outcome, NoSuchLedgerExistsOnMetadataServerException):
            raise outcome
    return records


async def _outcome(call: Awaitable[LedgerRecord]) -> LedgerRecord | BKException:
    try:
        return await call
    except BKException as error:
        return error
