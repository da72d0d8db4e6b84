"""BookKeeper's error codes and the exceptions that carry them.

Every failure that a caller may want to tell apart has its own class, named as in the Java client and carrying the same
number (`code`), so that people and tools that know one know the other. Source:
docs/protocol/client-protocol.md#error-codes; the mapping from a bookie's status is
docs/protocol/wire.md#client-statuses.

Not here: transport details. What a message says is up to whoever raises it: what was tried, where, what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from bookgate.ledger.ledger_id import LedgerId


class BKException(Exception):
    """Base of every error of the entry protocol, the metadata and the client.

    Where they are known it says which ledger, the fragment that begins at which entry, and what each bookie answered
    (the message says so too).
    """

    code: ClassVar[int] = -999

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
        """First entry of the fragment concerned."""
        self.bookies: Mapping[str, BKException] = dict(bookies or {})
        """Bookie id → its error."""


class ReadException(BKException):
    """A bookie failed to read, or a read beyond the LAC was asked for."""

    code = -1


class NoBookieAvailableException(BKException):
    """A bookie has no registration."""

    code = -3


class DigestMatchException(BKException):
    """An entry's digest or ids do not match, or the digest type is not the ledger's."""

    code = -5


class NotEnoughBookiesException(BKException):
    """There are fewer usable bookies than the ensemble needs."""

    code = -6


class NoSuchLedgerExistsException(BKException):
    """The bookie holds nothing of this ledger."""

    code = -7


class BookieHandleNotAvailableException(BKException):
    """The connection to a bookie failed or was lost, or the bookie is unknown."""

    code = -8


class ZKException(BKException):
    """The metadata store failed, or holds what can't be read as ledger metadata."""

    code = -9


class LedgerRecoveryException(BKException):
    """Recovery could not be finished; the ledger stays IN_RECOVERY and can be opened again later."""

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
    """The stored metadata is not at the expected version."""

    code = -17


class MetaStoreException(BKException):
    """The metadata store or the gateway in front of it is out of reach; the call may be tried again elsewhere."""

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
    """No answer within the timeout."""

    code = -23


class SecurityException(BKException):
    """TLS could not be set up."""

    code = -24


class NoSuchLedgerExistsOnMetadataServerException(BKException):
    """The metadata store has no such ledger."""

    code = -25


class IllegalOpException(BKException):
    """The operation is not allowed here."""

    code = -100


class LedgerFencedException(BKException):
    """Another client has fenced the ledger: this writer has lost it."""

    code = -101


class UnauthorizedAccessException(BKException):
    """Wrong ledger password, or not authenticated."""

    code = -102


class WriteOnReadOnlyBookieException(BKException):
    """The bookie is read-only."""

    code = -104


class TooManyRequestsException(BKException):
    """The bookie or the gateway is over one of its limits."""

    code = -105


class LedgerIdOverflowException(BKException):
    """The id generator ran out of ids."""

    code = -106


class MetadataSerializationException(BKException):
    """Ledger metadata could not be serialised."""

    code = -107


class DataUnknownException(BKException):
    """The bookie may have lost data of this ledger and can't say whether it held the entry."""

    code = -108


class UnexpectedConditionException(BKException):
    """Anything else."""

    code = -999


class MetadataFormatException(ZKException):
    """Stored bytes are not valid ledger metadata, a cookie or a registration."""


class StoreUnreachableException(MetaStoreException):
    """There was no connection to the store: whatever was asked of it, it surely did not do."""


class WrongClusterException(MetaStoreException):
    """The store that answers is another cluster's, or was put back to an older state than was seen before."""


class UnknownOutcomeException(MetaStoreException):
    """A change was sent and its answer lost: it may or may not have happened."""


class NotLetInException(UnauthorizedAccessException):
    """A bookie does not let this client in: it refused how it authenticates, whatever ledger it came for."""


class LedgerIdTakenException(UnauthorizedAccessException):
    """A new ledger's first entries were refused: somebody has made its id on the bookies with another key."""


class LedgerIdReusedException(LedgerFencedException):
    """A new ledger's first entries were refused: the bookies hold an earlier ledger of its id, which was fenced."""


_STATUS_EXCEPTIONS: dict[int, type[BKException]] = {
    402: NoSuchLedgerExistsException,
    403: NoSuchEntryException,
    502: UnauthorizedAccessException,
    503: ProtocolVersionException,
    504: LedgerFencedException,
    505: WriteOnReadOnlyBookieException,
    506: TooManyRequestsException,
    507: DataUnknownException,
}


def exception_for_status(status: int, default: type[BKException], message: str) -> BKException:
    """The exception for a bookie's status; `default` (ReadException, WriteException) where the operation decides."""
    return _STATUS_EXCEPTIONS.get(status, default)(message)
