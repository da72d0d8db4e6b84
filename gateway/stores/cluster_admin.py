"""A cluster as a whole: making one, describing it, emptying it, removing it.

Gateways and bookies never do these; they connect to what is there. Whoever empties or removes a cluster destroys the
metadata of every ledger, and bookies then delete the entries; so both are refused while a bookie is registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from bookgate.ledger.errors import IllegalOpException


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """What `info` tells. Counts: ledgers, and bookies that are writable, read-only, or known by their cookie."""

    instance_id: str
    ledger_manager: str
    ledgers: int
    writable_bookies: int
    read_only_bookies: int
    known_bookies: int


class ClusterAdmin(ABC):
    """Of one metadata store. Use it as an asynchronous context manager."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def connect(self) -> None:
        """Makes nothing in the store. Raises MetaStoreException when it is out of reach."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def initialize(self) -> None:
        """Makes a cluster, whole or not at all. Raises LedgerExistException where there is one."""

    @abstractmethod
    async def require_cluster(self) -> None:
        """Raises MetaStoreException where there is none, not even the rest of one."""

    @abstractmethod
    async def summary(self) -> ClusterSummary:
        """Raises MetaStoreException where there is no cluster."""

    @abstractmethod
    async def registered_bookies(self) -> list[str]:
        """Ids of the bookies that live, ordered."""

    @abstractmethod
    async def format(self) -> None:
        """Forgets all ledgers and cookies and takes a new instance id; bookies then refuse their old directories.

        Broken off, it may be done again. Raises MetaStoreException where there is no cluster, IllegalOpException
        while a bookie is registered.
        """

    @abstractmethod
    async def advance_ids(self, beyond: int) -> int:
        """Sees to it that no generated ledger id is `beyond` or below from now on; the first that may come.

        For a store that was put back to an older state: its counter would give out again what bookies hold entries of.
        Gateways that run keep what they have reserved. Raises MetaStoreException where there is no cluster,
        LedgerIdOverflowException.
        """

    @abstractmethod
    async def nuke(self) -> None:
        """Removes the cluster, with everything below its root. Raises as `format` does."""

    async def refuse_if_bookies_live(self, action: str) -> None:
        """Raises IllegalOpException."""
        bookies = await self.registered_bookies()
        if bookies:
            raise IllegalOpException(
                f"the cluster is not {action} while bookies are registered: {', '.join(bookies[:5])}"
                f"{' and others' if len(bookies) > 5 else ''}; stop them first"
            )
