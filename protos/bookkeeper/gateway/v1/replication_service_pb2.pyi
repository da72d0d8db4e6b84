from bookgate.protos.bookkeeper.common.v1 import status_pb2 as _status_pb2
from bookgate.protos.bookkeeper.proto import data_formats_pb2 as _data_formats_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VoteState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOTE_STATE_UNSPECIFIED: _ClassVar[VoteState]
    VOTE_STATE_WAITING: _ClassVar[VoteState]
    VOTE_STATE_ELECTED: _ClassVar[VoteState]
    VOTE_STATE_LOST: _ClassVar[VoteState]
VOTE_STATE_UNSPECIFIED: VoteState
VOTE_STATE_WAITING: VoteState
VOTE_STATE_ELECTED: VoteState
VOTE_STATE_LOST: VoteState

class AttendRequest(_message.Message):
    __slots__ = ("sequence", "session_id", "resume")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    session_id: str
    resume: bool
    def __init__(self, sequence: _Optional[int] = ..., session_id: _Optional[str] = ..., resume: bool = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("code", "message", "sequence", "lease_ms", "marks_changed", "enabled", "delay_written", "lock_lost", "vote_changed", "draining", "drains_changed")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MARKS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    DELAY_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    LOCK_LOST_FIELD_NUMBER: _ClassVar[int]
    VOTE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAINS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    sequence: int
    lease_ms: int
    marks_changed: bool
    enabled: bool
    delay_written: DelayWritten
    lock_lost: str
    vote_changed: VoteChanged
    draining: bool
    drains_changed: bool
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., sequence: _Optional[int] = ..., lease_ms: _Optional[int] = ..., marks_changed: bool = ..., enabled: bool = ..., delay_written: _Optional[_Union[DelayWritten, _Mapping]] = ..., lock_lost: _Optional[str] = ..., vote_changed: _Optional[_Union[VoteChanged, _Mapping]] = ..., draining: bool = ..., drains_changed: bool = ...) -> None: ...

class DelayWritten(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class VoteChanged(_message.Message):
    __slots__ = ("vote", "state")
    VOTE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    vote: int
    state: VoteState
    def __init__(self, vote: _Optional[int] = ..., state: _Optional[_Union[VoteState, str]] = ...) -> None: ...

class ScopedLedger(_message.Message):
    __slots__ = ("ledger_scope_id", "ledger_id")
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_scope_id: int
    ledger_id: int
    def __init__(self, ledger_scope_id: _Optional[int] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class StoredMark(_message.Message):
    __slots__ = ("ledger_id", "version", "content", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    version: int
    content: bytes
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., version: _Optional[int] = ..., content: _Optional[bytes] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class MarkRequest(_message.Message):
    __slots__ = ("ledger_id", "replicas", "ctime_ms", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CTIME_MS_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    ctime_ms: int
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., ctime_ms: _Optional[int] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class MarkResponse(_message.Message):
    __slots__ = ("code", "message", "mark")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    mark: StoredMark
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., mark: _Optional[_Union[StoredMark, _Mapping]] = ...) -> None: ...

class ListMarksRequest(_message.Message):
    __slots__ = ("ledger_id", "start_after", "page_size", "scoped", "start_after_scoped", "every_scope")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_SCOPED_FIELD_NUMBER: _ClassVar[int]
    EVERY_SCOPE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    start_after: int
    page_size: int
    scoped: ScopedLedger
    start_after_scoped: ScopedLedger
    every_scope: bool
    def __init__(self, ledger_id: _Optional[int] = ..., start_after: _Optional[int] = ..., page_size: _Optional[int] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ..., start_after_scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ..., every_scope: bool = ...) -> None: ...

class ListMarksResponse(_message.Message):
    __slots__ = ("code", "message", "marks")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    marks: _containers.RepeatedCompositeFieldContainer[StoredMark]
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., marks: _Optional[_Iterable[_Union[StoredMark, _Mapping]]] = ...) -> None: ...

class DeleteMarkRequest(_message.Message):
    __slots__ = ("ledger_id", "expected_version", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    expected_version: int
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., expected_version: _Optional[int] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class DeleteMarkResponse(_message.Message):
    __slots__ = ("code", "message", "deleted")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    deleted: bool
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., deleted: bool = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("session_id", "number", "try_lock", "release_lock", "check_lock", "stand", "withdraw", "end")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TRY_LOCK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_LOCK_FIELD_NUMBER: _ClassVar[int]
    CHECK_LOCK_FIELD_NUMBER: _ClassVar[int]
    STAND_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    number: int
    try_lock: TryLock
    release_lock: ReleaseLock
    check_lock: str
    stand: str
    withdraw: int
    end: bool
    def __init__(self, session_id: _Optional[str] = ..., number: _Optional[int] = ..., try_lock: _Optional[_Union[TryLock, _Mapping]] = ..., release_lock: _Optional[_Union[ReleaseLock, _Mapping]] = ..., check_lock: _Optional[str] = ..., stand: _Optional[str] = ..., withdraw: _Optional[int] = ..., end: bool = ...) -> None: ...

class TryLock(_message.Message):
    __slots__ = ("ledger_id", "holder", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    holder: str
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., holder: _Optional[str] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class ReleaseLock(_message.Message):
    __slots__ = ("ledger_id", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("code", "message", "token", "held")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    token: str
    held: bool
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., token: _Optional[str] = ..., held: bool = ...) -> None: ...

class ListClaimsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldLock(_message.Message):
    __slots__ = ("ledger_id", "holder", "scoped")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SCOPED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    holder: str
    scoped: ScopedLedger
    def __init__(self, ledger_id: _Optional[int] = ..., holder: _Optional[str] = ..., scoped: _Optional[_Union[ScopedLedger, _Mapping]] = ...) -> None: ...

class ListClaimsResponse(_message.Message):
    __slots__ = ("code", "message", "locks", "auditor")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    AUDITOR_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    locks: _containers.RepeatedCompositeFieldContainer[HeldLock]
    auditor: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., locks: _Optional[_Iterable[_Union[HeldLock, _Mapping]]] = ..., auditor: _Optional[str] = ...) -> None: ...

class WriteLedgerRequest(_message.Message):
    __slots__ = ("session_id", "token", "metadata", "expected_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    token: str
    metadata: _data_formats_pb2.LedgerMetadataFormat
    expected_version: int
    def __init__(self, session_id: _Optional[str] = ..., token: _Optional[str] = ..., metadata: _Optional[_Union[_data_formats_pb2.LedgerMetadataFormat, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class WriteLedgerResponse(_message.Message):
    __slots__ = ("code", "message", "version")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    version: int
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetSettingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSettingsResponse(_message.Message):
    __slots__ = ("code", "message", "enabled", "lost_bookie_delay_seconds", "check_times")
    class CheckTimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LOST_BOOKIE_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECK_TIMES_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    enabled: bool
    lost_bookie_delay_seconds: int
    check_times: _containers.ScalarMap[str, int]
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., enabled: bool = ..., lost_bookie_delay_seconds: _Optional[int] = ..., check_times: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ChangeSettingsRequest(_message.Message):
    __slots__ = ("enabled", "lost_bookie_delay_seconds", "check_ended", "only_if_absent")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LOST_BOOKIE_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECK_ENDED_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    lost_bookie_delay_seconds: int
    check_ended: CheckEnded
    only_if_absent: bool
    def __init__(self, enabled: bool = ..., lost_bookie_delay_seconds: _Optional[int] = ..., check_ended: _Optional[_Union[CheckEnded, _Mapping]] = ..., only_if_absent: bool = ...) -> None: ...

class CheckEnded(_message.Message):
    __slots__ = ("check", "ctime_ms")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    CTIME_MS_FIELD_NUMBER: _ClassVar[int]
    check: str
    ctime_ms: int
    def __init__(self, check: _Optional[str] = ..., ctime_ms: _Optional[int] = ...) -> None: ...

class ChangeSettingsResponse(_message.Message):
    __slots__ = ("code", "message", "lost_bookie_delay_seconds")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOST_BOOKIE_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    lost_bookie_delay_seconds: int
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., lost_bookie_delay_seconds: _Optional[int] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("key", "value", "version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    version: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class ListRecordsRequest(_message.Message):
    __slots__ = ("kind", "key")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class ListRecordsResponse(_message.Message):
    __slots__ = ("code", "message", "records")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ...) -> None: ...

class WriteRecordRequest(_message.Message):
    __slots__ = ("kind", "key", "value", "expected_version")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    value: bytes
    expected_version: int
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., expected_version: _Optional[int] = ...) -> None: ...

class WriteRecordResponse(_message.Message):
    __slots__ = ("code", "message", "version")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    version: int
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RemoveRecordRequest(_message.Message):
    __slots__ = ("kind", "key", "expected_version")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    expected_version: int
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., expected_version: _Optional[int] = ...) -> None: ...

class RemoveRecordResponse(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class WatchLedgersRequest(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class WatchLedgersResponse(_message.Message):
    __slots__ = ("code", "message", "revision", "lost", "began", "ledger_ids", "answered", "scoped_ledgers", "every_scope")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    SCOPED_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    EVERY_SCOPE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    revision: int
    lost: bool
    began: bool
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    answered: _containers.RepeatedScalarFieldContainer[int]
    scoped_ledgers: _containers.RepeatedCompositeFieldContainer[ScopedLedger]
    every_scope: bool
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ..., revision: _Optional[int] = ..., lost: bool = ..., began: bool = ..., ledger_ids: _Optional[_Iterable[int]] = ..., answered: _Optional[_Iterable[int]] = ..., scoped_ledgers: _Optional[_Iterable[_Union[ScopedLedger, _Mapping]]] = ..., every_scope: bool = ...) -> None: ...
