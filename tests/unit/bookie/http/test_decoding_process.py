"""Payloads that end whoever decodes them, or decode to far more than they are: told in a sentence."""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
import signal
from collections.abc import Sequence
from typing import Any, cast

import httpx
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

from bookgate.bookie.http import decoding_process
from bookgate.bookie.http.console_ledgers import console_ledger_action_routes
from bookgate.bookie.http.decoding_process import decoded_apart
from bookgate.bookie.http.payload_decoding import DecodingException
from bookgate.gateway.http.access import Access
from bookgate.gateway.http.api import create_app

pytestmark = pytest.mark.asyncio

LIST = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
NULLS = {"type": "array", "items": "null"}


def long_of(number: int) -> bytes:
    """As Avro writes a long."""
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def counted(content: bytes) -> bytes:
    return long_of(len(content)) + content


def container(schema: Any, block: bytes, codec: bytes = b"null") -> bytes:
    """An object container file with one value, which brings its own schema."""
    told = [(b"avro.schema", json.dumps(schema).encode()), (b"avro.codec", codec)]
    head = long_of(len(told)) + b"".join(counted(key) + counted(value) for key, value in told) + b"\x00"
    return b"Obj\x01" + head + b"S" * 16 + long_of(1) + counted(block) + b"S" * 16


def order(schema: str, payloads: Sequence[bytes], form: str = "avro", message: str = "") -> dict[str, Any]:
    shown = [base64.b64encode(each).decode() for each in payloads]
    return {"format": form, "schema": schema, "message": message, "skip": 0, "payloads": shown}


async def decoded(schema: Any, *payloads: bytes) -> Any:
    told = json.loads(await decoded_apart(json.dumps(order(json.dumps(schema), payloads)).encode()))
    assert told["problem"] is None
    return told["decoded"]


async def test_each_payload_has_its_value_or_its_problem() -> None:
    fits, fits_not = await decoded("string", b"\x02a", b"\x04a")
    assert fits == {"value": "a"}
    assert "does not fit the schema" in fits_not["problem"]


async def test_protobuf_goes_the_same_way() -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(wrappers_pb2.DESCRIPTOR.serialized_pb)
    schema = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    payload = wrappers_pb2.StringValue(value="a").SerializeToString()
    asked = order(schema, [payload], "protobuf", "google.protobuf.StringValue")
    assert json.loads(await decoded_apart(json.dumps(asked).encode())) == {"decoded": [{"value": "a"}], "problem": None}


@pytest.mark.parametrize("own_schema", [False, True])
async def test_a_payload_that_ends_the_process_is_told_to(own_schema: bool) -> None:
    nested = b"\x02" * 200_000 + b"\x00"
    schema, payload = ("string", container(LIST, nested)) if own_schema else (LIST, nested)
    with pytest.raises(DecodingException, match="ended the process that decoded them"):
        await decoded(schema, payload)


async def test_a_payload_that_nests_too_deeply_for_json_is_told_to_beside_the_others() -> None:
    deep, flat = await decoded(LIST, b"\x02" * 3000 + b"\x00", b"\x00")
    assert deep == {"problem": "what it decodes to is nested too deeply"}
    assert flat == {"value": {"n": None}}


async def test_a_few_bytes_that_decode_to_much_memory_are_told_to() -> None:
    told, sound = await decoded(NULLS, long_of(1 << 40) + b"\x00", b"\x00")
    assert told == {"problem": "what it decodes to takes too much memory"}
    assert sound == {"value": []}


async def test_a_few_bytes_that_decode_to_a_large_answer_are_told_to() -> None:
    squeezed = lzma.compress(counted(b"a" * (9 << 20)), preset=0)
    assert len(squeezed) < 10_000
    with pytest.raises(DecodingException, match="more than 8 MiB"):
        await decoded("string", container("bytes", squeezed, b"xz"))


async def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_process, "_SECONDS", 0.001)
    with pytest.raises(DecodingException, match="took longer"):
        await decoded("string", b"\x02a")


async def test_the_process_is_over_when_its_request_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    first = asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def remembered(*words: str, **more: Any) -> asyncio.subprocess.Process:
        started.append(await start(*words, **more))
        first.set()
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remembered)
    asked = asyncio.create_task(decoded(NULLS, long_of(1 << 40) + b"\x00"))
    await first.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert started[0].returncode == -signal.SIGKILL


async def test_the_route_tells_the_problem_and_goes_on() -> None:
    app = create_app(console_ledger_action_routes(cast(Any, None)), Access(None, loopback=True), {})
    path = "/api/v1/console/decode"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=30) as http:
        ends = await http.post(path, json=order('"string"', [container(LIST, b"\x02" * 200_000)]))
        assert (ends.status_code, ends.json()["decoded"]) == (200, [])
        assert "ended the process" in ends.json()["problem"]
        no_schema = await http.post(path, json=order("{", [b"a"]))
        assert "no Avro schema" in no_schema.json()["problem"]
        sound = await http.post(path, json=order('"string"', [b"\x02a"]))
        assert sound.json() == {"decoded": [{"value": "a"}], "problem": None}
        assert sound.headers["X-Content-Type-Options"] == "nosniff"
