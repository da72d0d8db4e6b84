"""Real traffic between Java client and Java bookie, replayed against a bookie of ours: the answers are the same.

The requests go out in the recorded order over as many connections; an answer is taken wherever the recording has one.
Within a step answers may come in another order, since a Java bookie works on several requests at once. They are equal
to the byte, but for what can't be: disk sizes, and the time of a LAC, which the Java bookie does not know where it has
lost the waiter (F8).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import messages, v2, v3
from bookgate.ledger.wire.messages import Response
from tests.conformance.golden import rows
from tests.integration.bookie.entry_client import EntryClient
from tests.integration.bookie.in_process import entry_address, running_bookie

Row = dict[str, Any]
_V3_FIRST_BYTE = 0x0A
_KEY = b"the key of the twins"
_DIGEST = digest_for(DigestType.CRC32C, b"")


def steps() -> Iterator[tuple[str, list[Row]]]:
    for (protocol, step), group in itertools.groupby(
        rows("wire_capture.jsonl"), lambda row: (row["proto"], row["step"])
    ):
        yield f"{protocol}: {step}", list(group)


def decoded(packet: bytes) -> Response:
    if packet[0] == _V3_FIRST_BYTE:
        return v3.decode_response(packet)
    return v2.decode_response(packet)


def comparable(packet: bytes) -> object:
    """The answer's bytes; its fields with what can't be equal left out, where there is such."""
    response = decoded(packet)
    if isinstance(response, messages.GetBookieInfoResponse):
        there = (response.total_disk_capacity is not None, response.free_disk_space is not None)
        return response.txn_id, response.status, there
    if isinstance(response, messages.ReadResponse) and response.lac_update_timestamp_ms is not None:
        return v3.encode_response(response._replace(lac_update_timestamp_ms=None))[4:]
    return packet


class Replay:
    """The connections of the recording, opened when they are first used."""

    def __init__(self, address: str, stack: contextlib.ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._clients: dict[int, EntryClient] = {}

    def play(self, step: list[Row]) -> list[bytes]:
        """Sends a step's requests; returns as many answers as were recorded."""
        answers = []
        for row in step:
            client = self._client(row["conn"])
            if row["dir"] == "c2b":
                client.socket.sendall(bytes.fromhex(row["frame"]))
            else:
                answers.append(client.receive_packet())
        return answers

    def _client(self, number: int) -> EntryClient:
        if number not in self._clients:
            self._clients[number] = self._stack.enter_context(EntryClient(self._address))
        return self._clients[number]


class Twins:
    """For each ledger of the recording two of the same lower half in other scopes, with a key of their own."""

    def __init__(self, client: EntryClient) -> None:
        self._client = client
        frames = [bytes.fromhex(row["frame"])[4:] for _, step in steps() for row in step if row["dir"] == "c2b"]
        lows = {number for frame in frames if (number := ledger_of(frame)) is not None}
        self.numbers = [LedgerId(scope_id, low).number for low in sorted(lows) for scope_id in (1, -1)]

    def write(self) -> None:
        """Fenced, so that a mixed-up fence would show as well."""
        for number in self.numbers:
            for entry_id in range(3):
                add = messages.AddRequest(1, number, entry_id, _KEY, self._packet(number, entry_id), recovery=True)
                assert self._client.ask(add).status == messages.EOK
            fence = messages.ReadRequest(2, number, messages.LAST_ENTRY, True, _KEY)
            assert self._client.ask(fence).status == messages.EOK

    def check(self) -> None:
        """They are as they were written."""
        for number in self.numbers:
            for entry_id in range(3):
                found = self._client.ask(messages.ReadRequest(3, number, entry_id))
                assert isinstance(found, messages.ReadResponse)
                assert found.body == self._packet(number, entry_id)

    @staticmethod
    def _packet(number: int, entry_id: int) -> bytes:
        return encode_entry(_DIGEST, number, entry_id, entry_id - 1, 4, b"twin")


def ledger_of(packet: bytes) -> int | None:
    """The ledger that a recorded request is about."""
    read = v3.decode_request if packet[0] == _V3_FIRST_BYTE else v2.decode_request
    number = getattr(read(packet), "ledger_id", None)
    return number if isinstance(number, int) and number >= 0 else None


@pytest.mark.asyncio
@pytest.mark.parametrize("scoped", [False, True], ids=["", "beside ledgers with a scope"])
async def test_our_answers_are_those_of_the_java_bookie(tmp_path: Path, scoped: bool) -> None:
    def compare(address: str) -> int:
        count = 0
        with contextlib.ExitStack() as stack:
            twins = Twins(stack.enter_context(EntryClient(address)))
            if scoped:
                assert len(twins.numbers) > 10
                twins.write()
            replay = Replay(address, stack)
            for name, step in steps():
                expected = [bytes.fromhex(row["frame"])[4:] for row in step if row["dir"] == "b2c"]
                answers = replay.play(step)
                wanted, got = (sorted(map(comparable, packets), key=repr) for packets in (expected, answers))
                assert got == wanted, f"{name}: {[decoded(packet) for packet in answers]}"
                count += len(answers)
            if scoped:
                twins.check()
        return count

    async with running_bookie(tmp_path) as server:
        assert await asyncio.to_thread(compare, entry_address(server)) == 100
