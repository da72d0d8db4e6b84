"""The public names of `bookgate`: applications import these and no others.

`bookgate` loads this module when one of these names is first used, so that a process that needs none of them (a
gateway, a command that prints its help) does not load the client.
"""

from __future__ import annotations

from bookgate.ledger.connection_state import ConnectionState
from bookgate.ledger.entry import Entry
from bookgate.ledger.entry_columns import EntryColumns
from bookgate.ledger.errors import (
    AddEntryQuorumTimeoutException,
    BKException,
    BookieHandleNotAvailableException,
    ClientClosedException,
    CursorMovedException,
    DataUnknownException,
    DigestMatchException,
    DuplicateEntryIdException,
    EntryNotConfirmedException,
    IllegalOpException,
    IncorrectParameterException,
    LedgerClosedException,
    LedgerExistException,
    LedgerFencedException,
    LedgerIdOverflowException,
    LedgerIdReusedException,
    LedgerIdTakenException,
    LedgerRecoveryException,
    LedgerTrimmedException,
    MetadataFormatException,
    MetadataSerializationException,
    MetadataVersionException,
    MetaStoreException,
    NoBookieAvailableException,
    NoSuchEntryException,
    NoSuchLedgerExistsException,
    NoSuchLedgerExistsOnMetadataServerException,
    NotEnoughBookiesException,
    NotLetInException,
    PayloadCodecException,
    ProtocolVersionException,
    ReadException,
    SecurityException,
    StoreUnreachableException,
    TermSupersededException,
    TimeoutException,
    TooManyRequestsException,
    UnauthorizedAccessException,
    UnexpectedConditionException,
    UnknownBookieException,
    UnknownOutcomeException,
    WriteException,
    WriteOnReadOnlyBookieException,
    WrongClusterException,
    ZKException,
)
from bookgate.ledger.ledger_columns import LedgerColumns
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bookgate.ledger.metadata_store import LedgerRecord
from bookgate.ledger.payload_codec import Compression, Record, RecordPosition
from bookgate.thinclient.administration.admin import Admin, BookieSpace, RecoveryStatus, Replicas, UnderReplicated
from bookgate.thinclient.bookies.auth import ClientAuthProvider, ClientAuthSession, TokenAuthProvider
from bookgate.thinclient.client import BookKeeper
from bookgate.thinclient.config import ClientConfig
from bookgate.thinclient.handles.advanced_write_handle import AdvancedWriteHandle
from bookgate.thinclient.handles.ledger_options import LedgerOptions
from bookgate.thinclient.handles.read_handle import ReadHandle
from bookgate.thinclient.handles.record_writer import RecordWriter
from bookgate.thinclient.handles.unbounded.write_handle import UnboundedWriteHandle
from bookgate.thinclient.handles.write_handle import WriteHandle
from bookgate.thinclient.tools.admin_client import AdminRefusedException
from bookgate.thinclient.tools.collection import SuspendedGc
from bookgate.thinclient.tools.renaming import BookieRenaming

__all__ = [
    "AddEntryQuorumTimeoutException",
    "Admin",
    "AdminRefusedException",
    "AdvancedWriteHandle",
    "BKException",
    "BookKeeper",
    "BookieHandleNotAvailableException",
    "BookieRenaming",
    "BookieSpace",
    "ClientAuthProvider",
    "ClientAuthSession",
    "ClientClosedException",
    "ClientConfig",
    "Compression",
    "ConnectionState",
    "CursorMovedException",
    "DataUnknownException",
    "DigestMatchException",
    "DigestType",
    "DuplicateEntryIdException",
    "Entry",
    "EntryColumns",
    "EntryNotConfirmedException",
    "IllegalOpException",
    "IncorrectParameterException",
    "LedgerClosedException",
    "LedgerColumns",
    "LedgerExistException",
    "LedgerFencedException",
    "LedgerId",
    "LedgerIdOverflowException",
    "LedgerIdReusedException",
    "LedgerIdTakenException",
    "LedgerMetadata",
    "LedgerOptions",
    "LedgerRecord",
    "LedgerRecoveryException",
    "LedgerState",
    "LedgerTrimmedException",
    "MetaStoreException",
    "MetadataFormatException",
    "MetadataSerializationException",
    "MetadataVersionException",
    "NoBookieAvailableException",
    "NoSuchEntryException",
    "NoSuchLedgerExistsException",
    "NoSuchLedgerExistsOnMetadataServerException",
    "NotEnoughBookiesException",
    "NotLetInException",
    "PayloadCodecException",
    "ProtocolVersionException",
    "ReadException",
    "ReadHandle",
    "Record",
    "RecordPosition",
    "RecordWriter",
    "RecoveryStatus",
    "Replicas",
    "SecurityException",
    "StoreUnreachableException",
    "SuspendedGc",
    "TermSupersededException",
    "TimeoutException",
    "TokenAuthProvider",
    "TooManyRequestsException",
    "UnauthorizedAccessException",
    "UnboundedWriteHandle",
    "UnderReplicated",
    "UnexpectedConditionException",
    "UnknownBookieException",
    "UnknownOutcomeException",
    "WriteException",
    "WriteHandle",
    "WriteOnReadOnlyBookieException",
    "WrongClusterException",
    "ZKException",
]
