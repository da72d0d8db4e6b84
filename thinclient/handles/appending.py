"""The append methods of applications: one entry, one without waiting, or many; for every writer that assigns entry ids.

Not its job: performing an append (the writers), limiting appends (`in_flight_window`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Generic, TypeVar

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.thinclient.handles.in_flight_window import InFlightWindow

Payload = bytes | bytearray | memoryview

_Add = TypeVar("_Add")

APPENDS_A_TURN = 128
"""Bulk appends before the event loop gets control, so that responses are processed while requests are sent."""


class Appending(ABC, Generic[_Add]):
    """The appends of one writer, whose adds are of type `_Add`."""

    _window: InFlightWindow

    def __init__(self) -> None:
        self._bulk_turn = asyncio.Lock()

    async def append(self, payload: Payload) -> int:
        """Appends an entry. Concurrent calls are pipelined, in the order of the calls.

        Waits while the limits of `ClientConfig` on outstanding appends are reached.

        Args:
            payload: The entry's bytes.

        Returns:
            The entry id, once the entry is acknowledged.

        Raises:
            LedgerFencedException: Another client has taken over the ledger.
            NotEnoughBookiesException: Failed bookies can't be replaced and the ack quorum is out of reach.
            LedgerClosedException: The handle was closed.
            BKException: Another error has ended the ledger for this writer.
        """
        data = self._check(payload)
        if not self._window.try_enter(len(data)):
            await self._window.wait_to_enter(len(data))
        return await self._begin_with_future(data)

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Appends without waiting for capacity; the caller limits its outstanding appends. The future returns the entry
        id.
        """
        data = self._check(payload)
        self._window.enter(len(data))
        return self._begin_with_future(data)

    async def append_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> int:
        """Appends many entries, pipelined within the limits of `ClientConfig`.

        Concurrent calls keep their entries contiguous, in the order of the calls.

        Args:
            payloads: The entries, as an iterable or an async iterable.

        Returns:
            The id of the last entry, once all are acknowledged; without payloads, the last entry id so far.

        Raises:
            BKException: As `append`. Entries up to `last_add_confirmed` are acknowledged and kept.
        """
        async with self._bulk_turn:
            last = await self._begin_all(payloads)
        return await self._confirmed(last)

    async def _begin_all(self, payloads: Iterable[Payload] | AsyncIterable[Payload]) -> _Add | None:
        """Sends many entries; returns the last add."""
        last: _Add | None = None
        if isinstance(payloads, AsyncIterable):
            async for payload in payloads:
                data = self._check(payload)
                if not self._window.try_enter(len(data)):
                    await self._window.wait_to_enter(len(data))
                last = self._begin_run((data,))
            return last
        run: list[bytes] = []

        def send() -> None:
            nonlocal last
            if run:
                entries = run.copy()
                run.clear()
                last = self._begin_run(entries)

        try:
            for payload in payloads:
                data = self._check(payload)
                if not self._window.try_enter(len(data)):
                    send()
                    await self._window.wait_to_enter(len(data))
                run.append(data)
                if len(run) == APPENDS_A_TURN:
                    send()
                    await asyncio.sleep(0)
        finally:
            send()  # what was accepted before `payloads` failed
        return last

    @abstractmethod
    def _check(self, payload: Payload) -> bytes:
        """The bytes to append, after all checks."""

    @abstractmethod
    def _begin_run(self, payloads: Sequence[bytes]) -> _Add:
        """Sends entries, at least one, that the window has already counted; returns the last add."""

    @abstractmethod
    def _begin_with_future(self, payload: bytes) -> asyncio.Future[int]:
        """Sends an entry that the window has already counted, with others of this turn; returns a future of its id."""

    @abstractmethod
    async def _confirmed(self, add: _Add | None) -> int:
        """Waits until an add without a future is confirmed; returns its id, or without an add the last id sent."""


def payload_bytes(payload: object) -> bytes:
    """An immutable copy, because the payload's owner might change it. Raises IncorrectParameterException for other
    types.
    """
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise IncorrectParameterException(f"an entry is bytes, bytearray or memoryview, not {type(payload).__name__}")
