"""Ledger ids from ZooKeeper's sequence counters, compatible with every other client of the same store.

31-bit: an ephemeral sequential node below `idgen` (flat manager: below the root); its number is the id, and the node is
deleted again. 63-bit: once the 31-bit counter has overflowed, or someone has created `idgen-long`, ids are `HOB << 32 |
low`, where HOB is the largest `HOB-` node below `idgen-long` and low a 31-bit number counted below that node; when low
overflows the next HOB node is created. At most three HOB nodes are kept. Numbers may have gaps. Source:
docs/protocol/metadata.md#ledger-id-generation.

`idgen-long` is listed for each block of ids, so a process that runs goes on where an operator or another client has
moved the ids. A HOB node that is gone is not created again: its counter would begin at 0, and give ids a second time.

A single number costs a round trip and three commits. Numbers are therefore reserved in blocks, in one transaction that
advances the counter (`requests.ReserveNumbers`): to others it looks like a burst of creations. The rest of a block is
lost when the process ends, which leaves a gap. `id_blocks` decides how many to reserve when.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from kazoo.exceptions import KazooException, NoNodeError

from bookgate.gateway.stores.zookeeper.nodes import ensure_node, parent_of
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException, LedgerIdOverflowException, UnknownOutcomeException, ZKException
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_OVERFLOW = (1 << 31) - 1
_HOB_KEPT = 3
_SEQUENCE_DIGITS = 10
_ATTEMPTS = 3


_BURNT_AT_ONCE = 1000
_MOST_BURNT = 200_000
"""Maximum ids that are skipped to advance beyond one; beyond that, 63-bit ids begin, or the next HOB."""


class IdGenerator(Protocol):
    """Generates ids; the caller tries again if one is taken."""

    async def reserve(self, count: int) -> range:
        """Between one and `count` consecutive ids that no other client receives."""
        ...


class AdvancingIdGenerator(IdGenerator, Protocol):
    """A generator whose counter an operator can advance."""

    async def advance(self, beyond: int) -> int:
        """Advances the counter until the next id is above `beyond`, for every client of this store.

        Returns the id that may be the next. Raises like `reserve`.
        """
        ...


class ShortIdGenerator:
    """31-bit ids."""

    def __init__(self, session: ZooKeeperSession, prefix: str, root: str, *, counts_on: bool = False) -> None:
        """`prefix`: path and name prefix of the sequential nodes, below the ledgers root `root`.

        `counts_on`: if the parent is gone, and its counter with it, `reserve` raises NoNodeError, and does not create
        it to count from 0.
        """
        self._session = session
        self._root = root
        self._prefix = prefix
        self._counts_on = counts_on

    async def reserve(self, count: int) -> range:
        path = await self._take_numbers(count)
        self._session.delete_soon(path)
        text = path[len(self._prefix) :]
        try:
            number = int(text)
        except ValueError as error:
            raise ZKException(f"ZooKeeper made the sequential node {path}, which has no number") from error
        if not 0 <= number < _OVERFLOW:
            raise LedgerIdOverflowException(f"the 31-bit ledger ids below {self._prefix} are used up")
        return range(number, min(number + count, _OVERFLOW))

    async def advance(self, beyond: int) -> int:
        taken = await self.reserve(1)
        while taken[-1] < beyond:
            taken = await self.reserve(min(beyond - taken[-1], _BURNT_AT_ONCE))
        return taken[-1] + 1

    async def _take_numbers(self, count: int) -> str:
        lost_answers = 0
        while True:
            try:
                return await self._session.reserve_numbers(self._prefix, count)
            except NoNodeError:
                if self._counts_on:
                    raise
                await ensure_node(self._session, parent_of(self._prefix), self._root)
            except UnknownOutcomeException:
                # A lost response costs only numbers.
                lost_answers += 1
                if lost_answers == _ATTEMPTS:
                    raise


class LongIdGenerator:
    """63-bit ids once 31 bits are used up; until then the ids of the 31-bit generator. Reserves one block at a time."""

    def __init__(self, session: ZooKeeperSession, root: str) -> None:
        self._session = session
        self._root = root
        self._short = ShortIdGenerator(session, f"{root}/idgen/ID-", root)
        self._directory = f"{root}/idgen-long"
        self._last = -1
        """The largest id of 63 bits that was reserved here. Once there is one, none has 31 bits any more."""

    async def reserve(self, count: int) -> range:
        # Listed for each block: an operator or another client may have created a larger HOB.
        hobs = await self._list_hobs()
        if hobs is None and self._last < 0:
            try:
                return await self._short.reserve(count)
            except LedgerIdOverflowException:
                await self._create_hob(1)
                hobs = await self._list_hobs()
        while (taken := await self._reserve_long(hobs or [], count)) is None:
            hobs = await self._list_hobs()
        return taken

    async def advance(self, beyond: int) -> int:
        taken = await self.reserve(1)
        while taken[-1] < beyond:
            if beyond - taken[-1] > _MOST_BURNT:
                return await self._begin_hob_beyond(beyond)
            taken = await self.reserve(min(beyond - taken[-1], _BURNT_AT_ONCE))
        return taken[-1] + 1

    async def _begin_hob_beyond(self, beyond: int) -> int:
        """Creates a larger HOB, with which all clients of this store continue, even if 31 bits were not used up."""
        hob = (beyond >> 32) + 1
        if hob >= _OVERFLOW:
            raise LedgerIdOverflowException(f"there are no ledger ids above {beyond}")
        await self._create_hob(hob)
        return hob << 32

    async def _reserve_long(self, hobs: Sequence[int], count: int) -> range | None:
        """Reserves below the largest of these HOBs. None: list them again, they have changed."""
        hob = hobs[-1] if hobs else 0
        if hob >= _OVERFLOW:
            raise LedgerIdOverflowException("the 63-bit ledger ids are used up")
        try:
            taken = await self._reserve_below(hob, count) if hobs else None
        except NoNodeError:
            return None
        if taken is None or taken.start <= self._last:
            # Used up; or the node was removed, and whoever created it again counts from 0.
            await self._create_hob(max(hob, self._last >> 32) + 1)
            return None
        if hob != self._last >> 32:
            await self._delete_hobs(hobs[:-_HOB_KEPT])
        self._last = taken[-1]
        return taken

    async def _reserve_below(self, hob: int, count: int) -> range | None:
        """None: the numbers of this HOB are used up. Raises NoNodeError."""
        low = ShortIdGenerator(self._session, f"{self._hob_path(hob)}/ID-", self._root, counts_on=True)
        try:
            numbers = await low.reserve(count)
        except LedgerIdOverflowException:
            return None
        return range(hob << 32 | numbers.start, hob << 32 | numbers.stop)

    async def _list_hobs(self) -> list[int] | None:
        """Ascending; None if ids of 63 bits have not begun."""
        try:
            names = await self._session.children(self._directory)
        except NoNodeError:
            return None
        digits = [name.removeprefix("HOB-") for name in names if name.startswith("HOB-")]
        return sorted(int(text) for text in digits if len(text) >= _SEQUENCE_DIGITS and text.isdigit())

    async def _create_hob(self, hob: int) -> None:
        for path in (self._directory, self._hob_path(hob)):
            await ensure_node(self._session, path, self._root, open_to_all=True)

    async def _delete_hobs(self, hobs: Sequence[int]) -> None:
        for hob in hobs:
            try:
                await self._session.delete(self._hob_path(hob), version=0)
            except (BKException, KazooException) as error:
                # Another client still counts below it, or has deleted it.
                log_event(_LOG, "id_node_stays", logging.DEBUG, path=self._hob_path(hob), error=error)

    def _hob_path(self, hob: int) -> str:
        return f"{self._directory}/HOB-{hob:010d}"


def id_generator_of(manager: str, session: ZooKeeperSession, root: str) -> AdvancingIdGenerator:
    """The generator that the ledger manager uses in Apache BookKeeper."""
    if manager == "flat":
        return ShortIdGenerator(session, f"{root}/ID-", root)
    if manager == "legacyhierarchical":
        return ShortIdGenerator(session, f"{root}/idgen/ID-", root)
    return LongIdGenerator(session, root)
