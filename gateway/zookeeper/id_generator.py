"""Ledger ids from ZooKeeper's sequence counters, in step with every other client of the same store.

31-bit: an ephemeral sequential node below `idgen` (flat manager: below the root); its number is the id, and the node
is deleted again. 63-bit: once the 31-bit counter has overflowed, or someone has created `idgen-long`, ids are
`HOB << 32 | low`, where HOB is the largest `HOB-` node below `idgen-long` and low a 31-bit number counted below that
node; when low overflows the next HOB node is created. At most three HOB nodes stay. Numbers may have gaps. Source:
metadata page, section 6.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from gateway.zookeeper.nodes import create_with_parents, ensure_node
from gateway.zookeeper.session import ZooKeeperSession
from ledger.errors import BKException, LedgerIdOverflowException, UnknownOutcomeException, ZKException

_LOG = logging.getLogger(__name__)

_OVERFLOW = (1 << 31) - 1
_HOB_KEPT = 3
_SEQUENCE_DIGITS = 10
_ATTEMPTS = 3


class IdGenerator(Protocol):
    """Makes ids; the caller asks again where one is taken."""

    async def generate(self) -> int:
        """Raises LedgerIdOverflowException, MetaStoreException, ZKException."""
        ...


class ShortIdGenerator:
    """31-bit ids."""

    def __init__(self, session: ZooKeeperSession, prefix: str) -> None:
        """`prefix`: path and beginning of the name of the sequential nodes."""
        self._session = session
        self._prefix = prefix

    async def generate(self) -> int:
        path = await self._create()
        with contextlib.suppress(BKException, KazooException):
            # It goes with the session anyway.
            await self._session.delete(path)
        text = path[len(self._prefix) :]
        try:
            number = int(text)
        except ValueError as error:
            raise ZKException(f"ZooKeeper made the sequential node {path}, which has no number") from error
        if not 0 <= number < _OVERFLOW:
            raise LedgerIdOverflowException(f"the 31-bit ledger ids below {self._prefix} are used up")
        return number

    async def _create(self) -> str:
        for attempt in range(_ATTEMPTS):
            try:
                return await create_with_parents(self._session, self._prefix, b"", ephemeral=True, sequence=True)
            except UnknownOutcomeException:
                # A lost answer costs a number, nothing else.
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")


class LongIdGenerator:
    """63-bit ids once 31 bits are used up; until then the 31-bit generator's."""

    def __init__(self, session: ZooKeeperSession, root: str) -> None:
        self._session = session
        self._short = ShortIdGenerator(session, f"{root}/idgen/ID-")
        self._directory = f"{root}/idgen-long"
        self._present: bool | None = None
        self._hobs: list[int] | None = None

    async def generate(self) -> int:
        if self._present is None:
            self._present = await self._session.exists(self._directory) is not None
        if not self._present:
            try:
                return await self._short.generate()
            except LedgerIdOverflowException:
                await ensure_node(self._session, self._directory)
                self._present = True
        return await self._generate_long()

    async def _generate_long(self) -> int:
        while True:
            hob = await self._current_hob()
            if hob >= _OVERFLOW:
                raise LedgerIdOverflowException("the 63-bit ledger ids are used up")
            low = ShortIdGenerator(self._session, f"{self._hob_path(hob)}/ID-")
            try:
                return hob << 32 | await low.generate()
            except LedgerIdOverflowException:
                await self._create_hob(hob + 1)

    async def _current_hob(self) -> int:
        """The largest HOB, from the cached list where there is one."""
        while not self._hobs:
            self._hobs = await self._list_hobs()
            if not self._hobs:
                await self._create_hob(1)
        if len(self._hobs) > _HOB_KEPT:
            outdated, self._hobs = self._hobs[:-_HOB_KEPT], self._hobs[-_HOB_KEPT:]
            await self._delete_hobs(outdated)
        return self._hobs[-1]

    async def _list_hobs(self) -> list[int]:
        try:
            names = await self._session.children(self._directory)
        except NoNodeError:
            return []
        digits = [name.removeprefix("HOB-") for name in names if name.startswith("HOB-")]
        return sorted(int(text) for text in digits if len(text) >= _SEQUENCE_DIGITS and text.isdigit())

    async def _create_hob(self, hob: int) -> None:
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._session, self._hob_path(hob), b"")
        self._hobs = None

    async def _delete_hobs(self, hobs: list[int]) -> None:
        for hob in hobs:
            try:
                await self._session.delete(self._hob_path(hob), version=0)
            except (BKException, KazooException) as error:
                # Somebody still counts below it, or has deleted it.
                _LOG.debug("outdated id node %s stays: %s", self._hob_path(hob), error)

    def _hob_path(self, hob: int) -> str:
        return f"{self._directory}/HOB-{hob:010d}"
