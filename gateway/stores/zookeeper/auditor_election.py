"""The election of the auditor: ephemeral sequential nodes, of which the one with the lowest number belongs to the
auditor.

States of a vote: waiting → elected → lost or withdrawn; waiting → lost or withdrawn. Each candidate watches its own
vote and the one before it, so that a death affects one candidate only; the winner continues to watch its own. Every
event causes the complete list to be read again. A vote ends with the session. A vote whose creation has an unknown
outcome is searched for and deleted: as the lowest it would keep everyone from becoming auditor. Source:
docs/protocol/auto-recovery.md#election.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from bookgate.gateway.stores.zookeeper.nodes import children_or_none, ensure_node
from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.gateway.stores.zookeeper.session import ZooKeeperSession
from bookgate.ledger.errors import BKException, MetadataFormatException, UnknownOutcomeException
from bookgate.ledger.replication import decode_vote, encode_vote
from bookgate.ledger.replication_store import AuditorVote, VoteListener, VoteState
from bookgate.runtime.auditor_votes import Vote
from bookgate.runtime.background import keep_running
from bookgate.runtime.logs import log_event

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_PREFIX = "V_"
_VOTE = re.compile(rf"{_PREFIX}(-?\d+)")


class AuditorElection:
    """The votes of this process. The factory reports new sessions."""

    def __init__(self, session: ZooKeeperSession, paths: ReplicationPaths) -> None:
        self._session = session
        self._paths = paths
        self._votes: dict[str, Vote] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._casting = asyncio.Lock()
        self._sweep: asyncio.Task[None] | None = None
        self._sweep_wanted = False
        """There may be strays that the running removal does not see any more."""

    async def stand(self, voter: str, listener: VoteListener) -> AuditorVote:
        """See the interface."""
        async with self._casting:
            session_id = self._session.session_id
            try:
                name = await self._create(voter)
            except (UnknownOutcomeException, asyncio.CancelledError):
                self._sweep_soon()
                raise
            vote = Vote(voter, name, listener, self._withdraw)
            self._votes[name] = vote
        if session_id != self._session.session_id:
            # The vote belongs to the old or the new session; the list decides.
            self._sweep_soon()
        self._tasks[name] = keep_running("candidacy for auditor", lambda: self._follow(vote))
        return vote

    async def _withdraw(self, vote: Vote) -> None:
        """Deletes the vote; if that fails, it is repeated."""
        if (task := self._tasks.pop(vote.name, None)) is not None:
            task.cancel()
        if self._votes.pop(vote.name, None) is None:
            return
        try:
            await self._session.delete(self._path(vote.name))
        except NoNodeError:
            return
        except BaseException:
            self._sweep_soon()
            raise

    async def auditor(self) -> str | None:
        """See the interface."""
        while names := await self._names():
            try:
                content, _ = await self._session.get(self._path(names[0]))
            except NoNodeError:
                continue
            try:
                return decode_vote(content)
            except MetadataFormatException:
                return ""
        return None

    def session_renewed(self) -> None:
        """Every vote is lost."""
        for vote in list(self._votes.values()):
            self._lose(vote)
        # A client that was created anew may continue the same session, and its nodes with it.
        self._sweep_soon()

    async def close(self) -> None:
        """Stops all work. The nodes are deleted with the session."""
        running = [*self._tasks.values(), *([self._sweep] if self._sweep else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _create(self, voter: str) -> str:
        while True:
            try:
                path = await self._session.create_sequential(self._path(_PREFIX), encode_vote(voter))
                return path.rpartition("/")[2]
            except NoNodeError:
                await ensure_node(self._session, self._paths.election, self._paths.root)

    async def _follow(self, vote: Vote) -> None:
        while not vote.over:
            try:
                await self._look(vote)
            except BKException as error:
                log_event(_LOG, "election_not_read", logging.WARNING, error=error, note="it is tried again")
                await asyncio.sleep(_RETRY_SECONDS)
        self._tasks.pop(vote.name, None)

    async def _look(self, vote: Vote) -> None:
        """Determines the state, and waits for an event that may change it."""
        changed = asyncio.Event()

        def on_event(event: WatchedEvent) -> None:
            changed.set()

        names = await self._names()
        if vote.name not in names:
            self._lose(vote)
            return
        before = names[: names.index(vote.name)]
        for name in (vote.name, *before[-1:]):
            if await self._session.exists(self._path(name), on_event) is None:
                return
        if before:
            vote.become(VoteState.WAITING)
        elif vote.state is not VoteState.ELECTED:
            await self._publish_auditor(vote.voter)
            vote.become(VoteState.ELECTED)
        # Watches are gone with a connection: look again when one was lost.
        epoch = self._session.connection_epoch
        while not changed.is_set() and epoch == self._session.connection_epoch:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await changed.wait()

    async def _publish_auditor(self, voter: str) -> None:
        try:
            await self._session.set(self._paths.election, encode_vote(voter), -1)
        except UnknownOutcomeException:
            return

    async def _names(self) -> list[str]:
        """Names of the votes, the lowest number first."""
        names = await children_or_none(self._session, self._paths.election) or []
        numbered = [(int(found[1]), name) for name in names if (found := _VOTE.fullmatch(name))]
        return [name for _, name in sorted(numbered)]

    def _path(self, name: str) -> str:
        return f"{self._paths.election}/{name}"

    def _lose(self, vote: Vote) -> None:
        self._votes.pop(vote.name, None)
        vote.become(VoteState.LOST)

    def _sweep_soon(self) -> None:
        self._sweep_wanted = True
        if self._sweep is None or self._sweep.done():
            self._sweep = keep_running("removal of stray votes", self._remove_strays)

    async def _remove_strays(self) -> None:
        """Deletes votes of this session that are unknown here."""
        while self._sweep_wanted:
            self._sweep_wanted = False
            try:
                await self._remove_strays_once()
            except Exception as error:
                self._sweep_wanted = True
                if not isinstance(error, BKException):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    async def _remove_strays_once(self) -> None:
        async with self._casting:
            # A server that was connected to since may not yet have a vote whose creation was not answered.
            await self._session.sync(self._paths.election)
            for name in await self._names():
                stat = await self._session.exists(self._path(name))
                if name not in self._votes and stat and stat.ephemeralOwner == self._session.session_id:
                    await self._delete(name)

    async def _delete(self, name: str) -> None:
        try:
            await self._session.delete(self._path(name))
        except NoNodeError:
            return
