"""Payloads by a schema: what fits, what does not, and schemas that are none."""

from __future__ import annotations

import base64
import datetime
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

from bookgate.bookie.http.payload_decoding import DecodingException, avro_decoder, plain, protobuf_decoder

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "raw", "type": "bytes"}],
}
WELL_KNOWN = wrappers_pb2.DESCRIPTOR.serialized_pb


def descriptors(*files: bytes) -> str:
    found = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in files]
    return base64.b64encode(descriptor_pb2.FileDescriptorSet(file=found).SerializeToString()).decode()


def test_an_avro_record_and_a_container_of_them() -> None:
    decode = avro_decoder(json.dumps(SCHEMA))
    one, file = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(one, SCHEMA, {"id": 7, "raw": b"\xff\x00"})
    fastavro.writer(file, SCHEMA, [{"id": 1, "raw": b"a"}, {"id": 2, "raw": b"b"}])
    assert decode(one.getvalue()) == {"id": 7, "raw": "0xff00"}
    assert decode(file.getvalue()) == [{"id": 1, "raw": "a"}, {"id": 2, "raw": "b"}]


def test_a_protobuf_message_by_its_full_name() -> None:
    decode = protobuf_decoder(descriptors(WELL_KNOWN), "google.protobuf.StringValue")
    assert decode(wrappers_pb2.StringValue(value="ä").SerializeToString()) == "ä"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: avro_decoder("{"), "no Avro schema"),
        (lambda: avro_decoder('{"type": "nothing"}'), "no Avro schema"),
        (lambda: avro_decoder("[" * 100_000), "no Avro schema"),
        (lambda: protobuf_decoder("!", "a.B"), "no set of file descriptors"),
        (lambda: protobuf_decoder(base64.b64encode(b"\xff" * 9).decode(), "a.B"), "no set of file descriptors"),
        (lambda: protobuf_decoder(descriptors(WELL_KNOWN), "a.B"), r"no message a\.B; there are .*StringValue"),
    ],
)
def test_schemas_that_are_none_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DecodingException, match=message):
        make()


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x02\xff\xff\xff", b"Obj\x01 and no more", b"\x02\x00 left over"])
def test_bytes_that_do_not_fit_an_avro_schema_are_said_to(payload: bytes) -> None:
    with pytest.raises(DecodingException, match="does not fit the schema"):
        avro_decoder(json.dumps(SCHEMA))(payload)


def test_bytes_that_are_no_protobuf_message_are_said_to() -> None:
    with pytest.raises(DecodingException, match=r"it is no google\.protobuf\.StringValue"):
        protobuf_decoder(descriptors(WELL_KNOWN), "google.protobuf.StringValue")(b"\xff\xff")


def test_values_become_what_json_has() -> None:
    value = {1: [b"a", float("nan"), datetime.date(2026, 1, 2)], "x": float("inf")}
    assert plain(value) == {"1": ["a", "nan", "2026-01-02"], "x": "inf"}


def test_whole_numbers_that_javascript_would_round_become_text() -> None:
    most = 2**53 - 1
    assert plain([most, -most, most + 1, -most - 1, True]) == [most, -most, str(most + 1), str(-most - 1), True]
