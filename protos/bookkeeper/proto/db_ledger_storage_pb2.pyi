from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerData(_message.Message):
    __slots__ = ("exists", "fenced", "masterKey", "explicitLac", "limbo", "ledgerTerm", "lastAddConfirmed", "lastAddFullyReplicated", "fencedInTerm")
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    MASTERKEY_FIELD_NUMBER: _ClassVar[int]
    EXPLICITLAC_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    LEDGERTERM_FIELD_NUMBER: _ClassVar[int]
    LASTADDCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LASTADDFULLYREPLICATED_FIELD_NUMBER: _ClassVar[int]
    FENCEDINTERM_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    fenced: bool
    masterKey: bytes
    explicitLac: bytes
    limbo: bool
    ledgerTerm: int
    lastAddConfirmed: int
    lastAddFullyReplicated: int
    fencedInTerm: bool
    def __init__(self, exists: bool = ..., fenced: bool = ..., masterKey: _Optional[bytes] = ..., explicitLac: _Optional[bytes] = ..., limbo: bool = ..., ledgerTerm: _Optional[int] = ..., lastAddConfirmed: _Optional[int] = ..., lastAddFullyReplicated: _Optional[int] = ..., fencedInTerm: bool = ...) -> None: ...
