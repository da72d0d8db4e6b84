from bookgate.protos.bookkeeper.common.v1 import status_pb2 as _status_pb2
from bookgate.protos.bookkeeper.proto import data_formats_pb2 as _data_formats_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSCRIBE: _ClassVar[WatchAction]
    UNSUBSCRIBE: _ClassVar[WatchAction]

class WatchEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE: _ClassVar[WatchEvent]
    REMOVED: _ClassVar[WatchEvent]
    BOOKMARK: _ClassVar[WatchEvent]
    SUSPENDED: _ClassVar[WatchEvent]
    RESUMED: _ClassVar[WatchEvent]
    DRAINING: _ClassVar[WatchEvent]
SUBSCRIBE: WatchAction
UNSUBSCRIBE: WatchAction
STATE: WatchEvent
REMOVED: WatchEvent
BOOKMARK: WatchEvent
SUSPENDED: WatchEvent
RESUMED: WatchEvent
DRAINING: WatchEvent

class LedgerMetadataRequest(_message.Message):
    __slots__ = ("ledger_id", "metadata", "expected_version", "ledger_scope_id", "request_token", "watch_action", "min_revision", "incarnation", "password_withheld")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WATCH_ACTION_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_WITHHELD_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    metadata: _data_formats_pb2.LedgerMetadataFormat
    expected_version: int
    ledger_scope_id: int
    request_token: bytes
    watch_action: WatchAction
    min_revision: int
    incarnation: int
    password_withheld: bool
    def __init__(self, ledger_id: _Optional[int] = ..., metadata: _Optional[_Union[_data_formats_pb2.LedgerMetadataFormat, _Mapping]] = ..., expected_version: _Optional[int] = ..., ledger_scope_id: _Optional[int] = ..., request_token: _Optional[bytes] = ..., watch_action: _Optional[_Union[WatchAction, str]] = ..., min_revision: _Optional[int] = ..., incarnation: _Optional[int] = ..., password_withheld: bool = ...) -> None: ...

class PasswordCheck(_message.Message):
    __slots__ = ("salt", "digest")
    SALT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    salt: bytes
    digest: bytes
    def __init__(self, salt: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class LedgerMetadataResponse(_message.Message):
    __slots__ = ("code", "ledger_id", "version", "metadata", "ledger_scope_id", "message", "revision", "event", "batch", "created_ms", "incarnation", "password_check", "requests_handled")
    CODE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_CHECK_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_HANDLED_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    ledger_id: int
    version: int
    metadata: _data_formats_pb2.LedgerMetadataFormat
    ledger_scope_id: int
    message: str
    revision: int
    event: WatchEvent
    batch: _containers.RepeatedCompositeFieldContainer[LedgerMetadataResponse]
    created_ms: int
    incarnation: int
    password_check: PasswordCheck
    requests_handled: int
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., ledger_id: _Optional[int] = ..., version: _Optional[int] = ..., metadata: _Optional[_Union[_data_formats_pb2.LedgerMetadataFormat, _Mapping]] = ..., ledger_scope_id: _Optional[int] = ..., message: _Optional[str] = ..., revision: _Optional[int] = ..., event: _Optional[_Union[WatchEvent, str]] = ..., batch: _Optional[_Iterable[_Union[LedgerMetadataResponse, _Mapping]]] = ..., created_ms: _Optional[int] = ..., incarnation: _Optional[int] = ..., password_check: _Optional[_Union[PasswordCheck, _Mapping]] = ..., requests_handled: _Optional[int] = ...) -> None: ...

class GetLedgerRangesRequest(_message.Message):
    __slots__ = ("limit_per_response", "ledger_scope_id", "start_after", "end_before", "include_metadata", "min_revision", "require_complete", "columns")
    LIMIT_PER_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    END_BEFORE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_METADATA_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    limit_per_response: int
    ledger_scope_id: int
    start_after: int
    end_before: int
    include_metadata: bool
    min_revision: int
    require_complete: bool
    columns: bool
    def __init__(self, limit_per_response: _Optional[int] = ..., ledger_scope_id: _Optional[int] = ..., start_after: _Optional[int] = ..., end_before: _Optional[int] = ..., include_metadata: bool = ..., min_revision: _Optional[int] = ..., require_complete: bool = ..., columns: bool = ...) -> None: ...

class GetLedgerRangesResponse(_message.Message):
    __slots__ = ("code", "count", "serialized_ranges", "ledger_scope_id", "last_ledger_id", "end", "ledgers", "message", "cluster_instance_id", "left_out", "columns")
    CODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SERIALIZED_RANGES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    count: int
    serialized_ranges: bytes
    ledger_scope_id: int
    last_ledger_id: int
    end: bool
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerMetadataResponse]
    message: str
    cluster_instance_id: str
    left_out: int
    columns: LedgerColumns
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., count: _Optional[int] = ..., serialized_ranges: _Optional[bytes] = ..., ledger_scope_id: _Optional[int] = ..., last_ledger_id: _Optional[int] = ..., end: bool = ..., ledgers: _Optional[_Iterable[_Union[LedgerMetadataResponse, _Mapping]]] = ..., message: _Optional[str] = ..., cluster_instance_id: _Optional[str] = ..., left_out: _Optional[int] = ..., columns: _Optional[_Union[LedgerColumns, _Mapping]] = ...) -> None: ...

class LedgerColumns(_message.Message):
    __slots__ = ("templates", "template_of", "ledger_ids", "versions", "last_entry_ids", "lengths", "ctimes", "creator_tokens", "created_ms", "revision")
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_OF_FIELD_NUMBER: _ClassVar[int]
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    CTIMES_FIELD_NUMBER: _ClassVar[int]
    CREATOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    templates: _containers.RepeatedScalarFieldContainer[bytes]
    template_of: _containers.RepeatedScalarFieldContainer[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    last_entry_ids: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    ctimes: _containers.RepeatedScalarFieldContainer[int]
    creator_tokens: _containers.RepeatedScalarFieldContainer[int]
    created_ms: _containers.RepeatedScalarFieldContainer[int]
    revision: int
    def __init__(self, templates: _Optional[_Iterable[bytes]] = ..., template_of: _Optional[_Iterable[int]] = ..., ledger_ids: _Optional[_Iterable[int]] = ..., versions: _Optional[_Iterable[int]] = ..., last_entry_ids: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., ctimes: _Optional[_Iterable[int]] = ..., creator_tokens: _Optional[_Iterable[int]] = ..., created_ms: _Optional[_Iterable[int]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListScopesRequest(_message.Message):
    __slots__ = ("start_after", "min_revision", "require_complete")
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    start_after: int
    min_revision: int
    require_complete: bool
    def __init__(self, start_after: _Optional[int] = ..., min_revision: _Optional[int] = ..., require_complete: bool = ...) -> None: ...

class ListScopesResponse(_message.Message):
    __slots__ = ("code", "scope_ids", "end", "last_scope_id", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_IDS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAST_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    scope_ids: _containers.RepeatedScalarFieldContainer[int]
    end: bool
    last_scope_id: int
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., scope_ids: _Optional[_Iterable[int]] = ..., end: bool = ..., last_scope_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class BatchReadRequest(_message.Message):
    __slots__ = ("ledger_ids", "ledger_scope_id", "min_revision", "batched_answers")
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SCOPE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    BATCHED_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    ledger_scope_id: int
    min_revision: int
    batched_answers: bool
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ..., ledger_scope_id: _Optional[int] = ..., min_revision: _Optional[int] = ..., batched_answers: bool = ...) -> None: ...

class BatchCreateRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[LedgerMetadataRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[LedgerMetadataRequest, _Mapping]]] = ...) -> None: ...

class BatchCreateResponse(_message.Message):
    __slots__ = ("code", "responses", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    responses: _containers.RepeatedCompositeFieldContainer[LedgerMetadataResponse]
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., responses: _Optional[_Iterable[_Union[LedgerMetadataResponse, _Mapping]]] = ..., message: _Optional[str] = ...) -> None: ...
