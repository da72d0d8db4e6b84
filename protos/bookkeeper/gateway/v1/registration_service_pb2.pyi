from bookgate.protos.bookkeeper.common.v1 import status_pb2 as _status_pb2
from bookgate.protos.bookkeeper.gateway.v1 import service_discovery_pb2 as _service_discovery_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegistrationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REGISTRATION_STATE_UNSPECIFIED: _ClassVar[RegistrationState]
    REGISTRATION_STATE_REGISTERED: _ClassVar[RegistrationState]
    REGISTRATION_STATE_PENDING: _ClassVar[RegistrationState]
    REGISTRATION_STATE_HELD_BY_ANOTHER: _ClassVar[RegistrationState]
    REGISTRATION_STATE_SUSPENDED: _ClassVar[RegistrationState]
    REGISTRATION_STATE_DRAINING: _ClassVar[RegistrationState]
    REGISTRATION_STATE_UNREGISTERED: _ClassVar[RegistrationState]
REGISTRATION_STATE_UNSPECIFIED: RegistrationState
REGISTRATION_STATE_REGISTERED: RegistrationState
REGISTRATION_STATE_PENDING: RegistrationState
REGISTRATION_STATE_HELD_BY_ANOTHER: RegistrationState
REGISTRATION_STATE_SUSPENDED: RegistrationState
REGISTRATION_STATE_DRAINING: RegistrationState
REGISTRATION_STATE_UNREGISTERED: RegistrationState

class Lease(_message.Message):
    __slots__ = ("lease_id", "epoch")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    epoch: int
    def __init__(self, lease_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("sequence", "bookie", "read_only", "lease", "unregister")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    bookie: _service_discovery_pb2.Bookie
    read_only: bool
    lease: Lease
    unregister: bool
    def __init__(self, sequence: _Optional[int] = ..., bookie: _Optional[_Union[_service_discovery_pb2.Bookie, _Mapping]] = ..., read_only: bool = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., unregister: bool = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("code", "sequence", "state", "lease_ms", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    sequence: int
    state: RegistrationState
    lease_ms: int
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., sequence: _Optional[int] = ..., state: _Optional[_Union[RegistrationState, str]] = ..., lease_ms: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class ReadCookieRequest(_message.Message):
    __slots__ = ("bookie_id",)
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    def __init__(self, bookie_id: _Optional[str] = ...) -> None: ...

class ReadCookieResponse(_message.Message):
    __slots__ = ("code", "cookie", "version", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    COOKIE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    cookie: bytes
    version: int
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., cookie: _Optional[bytes] = ..., version: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class WriteCookieRequest(_message.Message):
    __slots__ = ("bookie_id", "cookie", "expected_version")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    COOKIE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    cookie: bytes
    expected_version: int
    def __init__(self, bookie_id: _Optional[str] = ..., cookie: _Optional[bytes] = ..., expected_version: _Optional[int] = ...) -> None: ...

class WriteCookieResponse(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class RemoveCookieRequest(_message.Message):
    __slots__ = ("bookie_id", "expected_version")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    expected_version: int
    def __init__(self, bookie_id: _Optional[str] = ..., expected_version: _Optional[int] = ...) -> None: ...

class RemoveCookieResponse(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., message: _Optional[str] = ...) -> None: ...
