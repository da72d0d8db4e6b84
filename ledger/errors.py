"""BookKeeper's error codes and the exceptions that carry them.

Each failure that a caller may need to distinguish has its own class, with the name and the number (`code`) that it has
in the Java client, so that people and tools that know BookKeeper recognise it. Source:
docs/protocol/client-protocol.md#error-codes; docs/protocol/wire.md#client-statuses maps a bookie's status to a code.

Not its job: transport details. The code that raises an exception writes its message: what was attempted, where, and
what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from bookgate.ledger.ledger_id import LedgerId


class BKException(Exception):
    """Base class of every error of the entry protocol, the metadata and the client.

    Where known, it carries the ledger, the first entry id of the fragment concerned, and the error of each bookie. The
    message contains these too.
    """

    code: ClassVar[int] = -999
    request_over: bool = False
    """Whether the request to a bookie that failed surely has no effect from now on: it was never sent, or the bookie
    has refused it. False where it may still arrive.
    """

    def __init__(
        self,
        message: str = "",
        *,
        ledger_id: LedgerId | None = None,
        first_entry_id: int | None = None,
        bookies: Mapping[str, BKException] | None = None,
    ) -> None:
        super().__init__(message or type(self).__name__)
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        """First entry id of the fragment concerned."""
        self.bookies: Mapping[str, BKException] = dict(bookies or {})
        """Bookie id → its error."""

    def of_request_over(self) -> Self:
        """The same error for a request that surely has no effect from now on; others may share this one."""
        told = copy(self)
        told.request_over = True
        return told


class ReadException(BKException):
    """A bookie failed to read, or the requested entry lies beyond the LAC."""

    code = -1


class NoBookieAvailableException(BKException):
    """A bookie is not registered."""

    code = -3


class PayloadCodecException(BKException):
    """The payload of an entry is not of the codec that its ledger's custom metadata name, or that is not known here."""

    code = -999


class DigestMatchException(BKException):
    """The digest or the ids of an entry do not match, or the given digest type is not the ledger's."""

    code = -5


class NotEnoughBookiesException(BKException):
    """Fewer usable bookies are available than the ensemble needs."""

    code = -6


class NoSuchLedgerExistsException(BKException):
    """The bookie holds no entry of this ledger."""

    code = -7


class BookieHandleNotAvailableException(BKException):
    """The connection to a bookie failed or was lost, or the bookie is unknown."""

    code = -8


class ZKException(BKException):
    """The metadata store failed, or holds data that can't be parsed as ledger metadata."""

    code = -9


class LedgerRecoveryException(BKException):
    """Recovery did not complete. The ledger stays IN_RECOVERY; opening it again resumes recovery."""

    code = -10


class LedgerClosedException(BKException):
    """The handle or the ledger is closed."""

    code = -11


class WriteException(BKException):
    """A bookie failed to write."""

    code = -12


class NoSuchEntryException(BKException):
    """The entry does not exist, or the bookie does not hold it."""

    code = -13


class IncorrectParameterException(BKException):
    """An argument is out of its range."""

    code = -14


class ProtocolVersionException(BKException):
    """The bookie refused the protocol version."""

    code = -16


class MetadataVersionException(BKException):
    """The version of the stored metadata is not the expected one."""

    code = -17


class MetaStoreException(BKException):
    """The metadata store, or the gateway in front of it, is unreachable; the call may be retried at another gateway."""

    code = -18


class ClientClosedException(BKException):
    """The client was closed."""

    code = -19


class LedgerExistException(BKException):
    """The ledger id is in use."""

    code = -20


class AddEntryQuorumTimeoutException(BKException):
    """An entry was not stored on an ack quorum within the quorum timeout."""

    code = -21


class DuplicateEntryIdException(BKException):
    """The entry id was used before."""

    code = -22


class TimeoutException(BKException):
    """No response arrived within the timeout."""

    code = -23


class SecurityException(BKException):
    """TLS could not be set up."""

    code = -24


class NoSuchLedgerExistsOnMetadataServerException(BKException):
    """The metadata store has no such ledger."""

    code = -25


class UnknownBookieException(IncorrectParameterException):
    """Nothing in the cluster has the bookie id that was given: no cookie, no registration, no ledger."""


class IllegalOpException(BKException):
    """The operation is not allowed here."""

    code = -100


class LedgerFencedException(BKException):
    """Another client has fenced the ledger; this writer can no longer write to it."""

    code = -101


class UnauthorizedAccessException(BKException):
    """The ledger password is wrong, or the client is not authenticated."""

    code = -102


class WriteOnReadOnlyBookieException(BKException):
    """The bookie is read-only."""

    code = -104


class TooManyRequestsException(BKException):
    """The bookie or the gateway has exceeded one of its limits."""

    code = -105


class InvalidTermException(BKException):
    """Another client has taken over the unbounded ledger at a higher term; this client must stop writing to it."""

    code = -600


class EntryNotConfirmedException(ReadException):
    """The bookie does not know that the entry of an unbounded ledger is confirmed; it may be there all the same."""


class LedgerIdOverflowException(BKException):
    """The id generator has no ids left."""

    code = -106


class MetadataSerializationException(BKException):
    """Ledger metadata could not be serialised."""

    code = -107


class DataUnknownException(BKException):
    """The bookie may have lost data of this ledger and can't tell whether it held the entry."""

    code = -108


class UnexpectedConditionException(BKException):
    """Any other failure."""

    code = -999


class MetadataFormatException(ZKException):
    """Stored bytes are not valid ledger metadata, a cookie or a registration."""


class StoreUnreachableException(MetaStoreException):
    """There was no connection to the store, so the request was certainly not carried out."""


class WrongClusterException(MetaStoreException):
    """The store belongs to another cluster, or was restored to an older state than this process has seen."""


class UnknownOutcomeException(MetaStoreException):
    """A change was sent and its response was lost: it may or may not have been carried out."""


class TermSupersededException(LedgerFencedException):
    """Another client has taken the unbounded ledger over: this writer's term has passed, and what was pending failed.

    Whether a pending entry is in the ledger all the same, only the new term tells. It is never sent again.
    """


class LedgerTrimmedException(NoSuchEntryException):
    """The entry was deleted by a trim of its unbounded ledger; `first_available` is the first one that was not."""

    def __init__(self, message: str, first_available: int, *, ledger_id: LedgerId | None = None) -> None:
        super().__init__(message, ledger_id=ledger_id)
        self.first_available = first_available


class CursorMovedException(MetadataVersionException):
    """Another consumer has moved the cursor of a stream."""


class LockLostException(IllegalOpException):
    """The lock of an under-replicated ledger is no longer this holder's: what was to be done under it was not done."""


class NotLetInException(UnauthorizedAccessException):
    """A bookie rejects this client's authentication, whatever ledger the request is for."""


class LedgerIdTakenException(UnauthorizedAccessException):
    """The first entries of a new ledger were rejected: its id already exists on the bookies with another master key."""


class LedgerIdReusedException(LedgerFencedException):
    """The first entries of a new ledger were rejected: the bookies hold an earlier ledger of the same id, which was
    fenced.
    """


_STATUS_EXCEPTIONS: dict[int, type[BKException]] = {
    402: NoSuchLedgerExistsException,
    403: NoSuchEntryException,
    502: UnauthorizedAccessException,
    503: ProtocolVersionException,
    504: LedgerFencedException,
    505: WriteOnReadOnlyBookieException,
    506: TooManyRequestsException,
    507: DataUnknownException,
    600: InvalidTermException,
    601: EntryNotConfirmedException,
}


def exception_for_status(status: int, default: type[BKException], message: str) -> BKException:
    """The exception for a bookie's status. `default` (ReadException, WriteException) applies to statuses whose meaning
    depends on the operation.
    """
    return _STATUS_EXCEPTIONS.get(status, default)(message)
