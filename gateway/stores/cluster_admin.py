"""Operations on a whole cluster: creating, describing, emptying, removing.

Gateways and bookies never do these; they connect to an existing cluster. Emptying or removing a cluster destroys the
metadata of every ledger, after which bookies delete the entries; both are therefore rejected while a bookie is
registered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Self

from bookgate.ledger.errors import IllegalOpException

NO_SETTINGS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """The result of `info`: numbers of ledgers, and of bookies that are writable, read-only, or known only by their
    cookie.
    """

    instance_id: str
    ledger_manager: str
    ledgers: int
    writable_bookies: int
    read_only_bookies: int
    known_bookies: int


class ClusterAdmin(ABC):
    """The administration of one metadata store. Use it as an asynchronous context manager."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def connect(self) -> None:
        """Connects, and creates nothing. Raises MetaStoreException if the store is unreachable."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def initialize(self, settings: Mapping[str, bytes] = NO_SETTINGS) -> None:
        """Creates a cluster with these records of `RecordKind.SETTING`, completely or not at all.

        A store without auto-recovery leaves the records out. Raises LedgerExistException if there is a cluster, which
        stays as it is.
        """

    @abstractmethod
    async def require_cluster(self) -> None:
        """Raises MetaStoreException if there is neither a cluster nor remains of one."""

    @abstractmethod
    async def summary(self) -> ClusterSummary:
        """Counts ledgers and bookies. Raises MetaStoreException if there is no cluster."""

    @abstractmethod
    async def registered_bookies(self) -> list[str]:
        """Ids of the registered bookies, in order."""

    @abstractmethod
    async def format(self) -> None:
        """Deletes all ledgers and cookies and sets a new instance id; bookies then reject their old directories.

        An interrupted call may be repeated.

        Raises:
            MetaStoreException: There is no cluster.
            IllegalOpException: A bookie is registered.
        """

    @abstractmethod
    async def advance_ids(self, beyond: int) -> int:
        """Ensures that every id generated from now on is above `beyond`.

        For a store that was restored to an older state: its counter would otherwise generate ids of ledgers whose
        entries bookies still hold. Running gateways keep the ids that they have reserved.

        Args:
            beyond: The largest id that must not be generated.

        Returns:
            The first id that may be generated.

        Raises:
            MetaStoreException: There is no cluster.
            LedgerIdOverflowException: There are no such ids.
        """

    @abstractmethod
    async def nuke(self) -> None:
        """Removes the cluster, with everything below its root. Raises like `format`."""

    async def refuse_if_bookies_live(self, action: str) -> None:
        """Raises IllegalOpException if a bookie is registered."""
        bookies = await self.registered_bookies()
        if bookies:
            raise IllegalOpException(
                f"the cluster is not {action} while bookies are registered: {', '.join(bookies[:5])}"
                f"{' and others' if len(bookies) > 5 else ''}; stop them first"
            )
