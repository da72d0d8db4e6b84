"""Payloads as their schema reads them: Avro with its JSON schema, Protobuf with a set of file descriptors.

Pure: bytes and a schema in, values that JSON has out. A schema is compiled anew for each call; nothing of it is kept.
Bytes become text where they are UTF-8, else hex with `0x` in front; times are ISO 8601; whole numbers that JavaScript
would round are text, as in Protobuf's JSON.

What goes in may end the process or fill its memory, so only `decoding_child` calls this.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

Decoder = Callable[[bytes], Any]
"""Raises DecodingException, RecursionError and MemoryError."""

_MOST_EXACT = 2**53 - 1
"""The largest whole number up to which JavaScript, and with it a browser's JSON, tells all apart."""


class DecodingException(ValueError):
    """A schema that is none, or bytes that it does not fit; the message says which."""


def avro_decoder(schema: str) -> Decoder:
    """Of single records, without or with the header of an object container file. Raises DecodingException."""
    try:
        import fastavro
        from fastavro.schema import SchemaParseException
    except ModuleNotFoundError:
        raise DecodingException("Avro needs fastavro on this server: pip install 'bookgate[avro]'") from None
    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, SchemaParseException) as error:
        raise DecodingException(f"that is no Avro schema: {error}") from None

    def decode(payload: bytes) -> Any:
        try:
            if payload.startswith(b"Obj\x01"):
                return plain(list(fastavro.reader(io.BytesIO(payload))))
            stream = io.BytesIO(payload)
            value = fastavro.schemaless_reader(stream, parsed, None)
        except (RecursionError, MemoryError):
            raise
        except Exception as error:  # of a C extension, whatever bytes make it raise
            raise DecodingException(f"it does not fit the schema: {error or type(error).__name__}") from None
        left = len(payload) - stream.tell()
        if left:
            raise DecodingException(f"it does not fit the schema: {left} bytes are left over")
        return plain(value)

    return decode


def protobuf_decoder(descriptors: str, message: str) -> Decoder:
    """Of messages of a type. `descriptors` is what `protoc --include_imports --descriptor_set_out` writes, in base64.

    Raises DecodingException.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(descriptors, validate=True))
        for file in files.file:
            pool.Add(file)
    except (ValueError, TypeError, DecodeError) as error:
        raise DecodingException(f"that is no set of file descriptors with all its imports: {error}") from None
    names = sorted(f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type)
    try:
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (KeyError, TypeError):
        known = ", ".join(names[:20]) or "none"
        raise DecodingException(f"there is no message {message or '(none named)'}; there are {known}") from None

    def decode(payload: bytes) -> Any:
        try:
            return json_format.MessageToDict(kind.FromString(payload), preserving_proto_field_name=True)
        except (DecodeError, ValueError, TypeError, json_format.Error) as error:
            raise DecodingException(f"it is no {message}: {error or type(error).__name__}") from None

    return decode


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    match value:
        case bytes():
            return text_or_hex(value)
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case decimal.Decimal() | uuid.UUID():
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case int() if abs(value) > _MOST_EXACT:
            return str(value)
        case _:
            return value


def text_or_hex(content: bytes) -> str:
    """UTF-8 as it is, else hex."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"
