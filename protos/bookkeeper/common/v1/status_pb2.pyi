from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class StatusCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[StatusCode]
    BAD_REQUEST: _ClassVar[StatusCode]
    INTERNAL_SERVER_ERROR: _ClassVar[StatusCode]
    NOT_IMPLEMENTED: _ClassVar[StatusCode]
    UNEXPECTED: _ClassVar[StatusCode]
    LEDGER_METADATA_ERROR: _ClassVar[StatusCode]
    LEDGER_EXISTS: _ClassVar[StatusCode]
    LEDGER_NOT_FOUND: _ClassVar[StatusCode]
    BAD_VERSION: _ClassVar[StatusCode]
    LOCK_LOST: _ClassVar[StatusCode]
    SESSION_UNKNOWN: _ClassVar[StatusCode]
    ILLEGAL_OPERATION: _ClassVar[StatusCode]
    PERMISSION_DENIED: _ClassVar[StatusCode]
SUCCESS: StatusCode
BAD_REQUEST: StatusCode
INTERNAL_SERVER_ERROR: StatusCode
NOT_IMPLEMENTED: StatusCode
UNEXPECTED: StatusCode
LEDGER_METADATA_ERROR: StatusCode
LEDGER_EXISTS: StatusCode
LEDGER_NOT_FOUND: StatusCode
BAD_VERSION: StatusCode
LOCK_LOST: StatusCode
SESSION_UNKNOWN: StatusCode
ILLEGAL_OPERATION: StatusCode
PERMISSION_DENIED: StatusCode
