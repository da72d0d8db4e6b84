from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamEntry(_message.Message):
    __slots__ = ("append_time_ms", "since_snapshot", "record", "producer")
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    append_time_ms: int
    since_snapshot: int
    record: _containers.RepeatedScalarFieldContainer[bytes]
    producer: _containers.RepeatedCompositeFieldContainer[ProducerSequence]
    def __init__(self, append_time_ms: _Optional[int] = ..., since_snapshot: _Optional[int] = ..., record: _Optional[_Iterable[bytes]] = ..., producer: _Optional[_Iterable[_Union[ProducerSequence, _Mapping]]] = ...) -> None: ...

class ProducerSequence(_message.Message):
    __slots__ = ("name", "sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequence: int
    def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...
