from bookgate.protos.bookkeeper.common.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BookieSet(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WRITABLE: _ClassVar[BookieSet]
    READ_ONLY: _ClassVar[BookieSet]
    ALL: _ClassVar[BookieSet]
WRITABLE: BookieSet
READ_ONLY: BookieSet
ALL: BookieSet

class Endpoint(_message.Message):
    __slots__ = ("id", "host", "port", "protocol", "auth", "extensions")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AUTH_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    protocol: str
    auth: _containers.RepeatedScalarFieldContainer[str]
    extensions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., protocol: _Optional[str] = ..., auth: _Optional[_Iterable[str]] = ..., extensions: _Optional[_Iterable[str]] = ...) -> None: ...

class Bookie(_message.Message):
    __slots__ = ("bookie_id", "endpoints", "properties", "writable", "read_only")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    properties: _containers.ScalarMap[str, str]
    writable: bool
    read_only: bool
    def __init__(self, bookie_id: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., properties: _Optional[_Mapping[str, str]] = ..., writable: bool = ..., read_only: bool = ...) -> None: ...

class ListBookiesRequest(_message.Message):
    __slots__ = ("bookie_set",)
    BOOKIE_SET_FIELD_NUMBER: _ClassVar[int]
    bookie_set: BookieSet
    def __init__(self, bookie_set: _Optional[_Union[BookieSet, str]] = ...) -> None: ...

class ListBookiesResponse(_message.Message):
    __slots__ = ("code", "bookies", "revision", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    bookies: _containers.RepeatedCompositeFieldContainer[Bookie]
    revision: int
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., bookies: _Optional[_Iterable[_Union[Bookie, _Mapping]]] = ..., revision: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class WatchBookiesRequest(_message.Message):
    __slots__ = ("bookie_set",)
    BOOKIE_SET_FIELD_NUMBER: _ClassVar[int]
    bookie_set: BookieSet
    def __init__(self, bookie_set: _Optional[_Union[BookieSet, str]] = ...) -> None: ...

class WatchBookiesResponse(_message.Message):
    __slots__ = ("code", "bookies", "revision", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    bookies: _containers.RepeatedCompositeFieldContainer[Bookie]
    revision: int
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., bookies: _Optional[_Iterable[_Union[Bookie, _Mapping]]] = ..., revision: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class GetBookieServiceInfoRequest(_message.Message):
    __slots__ = ("bookie_id",)
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    def __init__(self, bookie_id: _Optional[str] = ...) -> None: ...

class GetBookieServiceInfoResponse(_message.Message):
    __slots__ = ("code", "bookie", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    bookie: Bookie
    message: str
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., bookie: _Optional[_Union[Bookie, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class GetClusterInfoRequest(_message.Message):
    __slots__ = ("catch_up",)
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    catch_up: bool
    def __init__(self, catch_up: bool = ...) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("code", "instance_id", "ledger_manager", "features", "message", "revision")
    CODE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_MANAGER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.StatusCode
    instance_id: str
    ledger_manager: str
    features: _containers.RepeatedScalarFieldContainer[str]
    message: str
    revision: int
    def __init__(self, code: _Optional[_Union[_status_pb2.StatusCode, str]] = ..., instance_id: _Optional[str] = ..., ledger_manager: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...
