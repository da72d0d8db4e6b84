"""Who is let in at the entry port of bookies and may do nothing there: attacks on ledgers that live, at random times.

They know the ledgers' key, so that nothing but the policy stands between them and an entry. One of them owns nothing,
of one no policy says anything, one shows no token; one may read until the policy is replaced, and one may add, and asks
for everything else. They add, add as recovery does, with and without a sync, fence by reads and by batch reads, write
LACs far above all others, force, read, wait for LACs and list entries; also of ledgers that nobody made. In some worlds
some of them don't wait for the answer to their token: token and request leave in one write.

Not its job: judging what they are told and what is left of it (`rules_access`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bookgate.ledger.digest import digest_for
from bookgate.ledger.entry import encode_entry, encode_lac
from bookgate.ledger.errors import BKException
from bookgate.ledger.ledger_id import MAX_UNSCOPED
from bookgate.ledger.metadata import DigestType
from bookgate.ledger.wire import messages, v2, v3
from bookgate.ledger.wire.messages import DEFERRED_SYNC, LAST_ENTRY, OPERATIONS, AddRequest, ReadRequest, Request
from bookgate.thinclient.bookies.auth import TOKEN_PLUGIN
from tests.history.contents import content, payload_of
from tests.history.events import Event, LedgerCreated, PolicyReplaced
from tests.history.recorder import Recorder
from tests.history.recording_client import PASSWORD
from tests.history.rules_access import ANONYMOUS, APPENDER, STRANGE_LAC, STRANGERS
from tests.simulation.access import WorldAccess
from tests.simulation.observer import KEY
from tests.simulation.settings import BOOKIE_PORT
from tests.simulation.simulated_bookie import SimulatedBookie
from tests.simulation.world import SimulatedClient, World
from tests.unit.thinclient.inside import pool_of

_DIGEST = digest_for(DigestType.CRC32C, PASSWORD)
_CALL_SECONDS = 3.0
_PAUSES_SECONDS = (0.02, 0.2, 0.6)
_NEVER_MADE = 77_000_000
_NEAR = 60
"""Entry ids that writers get to, mostly."""
_MORE_THAN_ADDING = ("recovery add", "fence", "read", "other")
_ALL = (*_MORE_THAN_ADDING, "fence", "add", "add", "lac", "force")
_TRUSTED_UNTIL = (0.2, 0.8)
"""When the policy is replaced, as shares of the run."""
_HASTY_WORLDS = 0.5
"""Share of the worlds in which strangers may send token and request in one write."""
_HASTY = 0.3
"""Share of the attacks there that do so."""


class Strangers:
    """See the module. `run` it beside the faults."""

    def __init__(self, world: World, access: WorldAccess, recorder: Recorder) -> None:
        self._world = world
        self._access = access
        self._recorder = recorder
        self._rng = world.random("strangers")
        haste = world.random("haste of strangers")
        self._haste = haste if haste.random() < _HASTY_WORLDS else None
        """A stream of its own, so that worlds without haste are as they would be if there were none."""
        self._visits: list[asyncio.Task[None]] = []
        self._ledgers: list[int] = []
        self._writes = 0
        recorder.listeners.append(self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, LedgerCreated):
            self._ledgers.append(int(event.ledger))

    async def run(self, seconds: float) -> None:
        """For so long. What is under way when it is cancelled is broken off."""
        world, rng = self._world, self._rng
        clients = [SimulatedClient(world, name, {}) for name in STRANGERS]
        until = world.now + seconds
        distrusted_at = world.now + rng.uniform(*_TRUSTED_UNTIL) * seconds
        world.loop.call_at_exact(distrusted_at, self._distrust, context=world.loop.outside.context)
        async with asyncio.TaskGroup() as attacks:
            while world.now < until:
                await asyncio.sleep(rng.choice(_PAUSES_SECONDS) * rng.random())
                client = rng.choice(clients)
                attacks.create_task(client.run(self._attack(client)))

    def _distrust(self) -> None:
        self._access.distrust()
        self._recorder.add(PolicyReplaced(self._recorder.now))

    async def _attack(self, client: SimulatedClient) -> None:
        rng, pool = self._rng, pool_of(client.bookkeeper)
        serving = [bookie for bookie in self._world.bookies.values() if bookie.serving]
        if not serving:
            return
        bookie, request = rng.choice(serving), self._request(client.name, pool.next_txn_id())
        if client.name != ANONYMOUS and self._haste is not None and self._haste.random() < _HASTY:
            # Not in the group, which cancels its tasks in the order of their addresses: that would show.
            self._visits.append(self._world.spawn(client.process, self._at_once(client.name, bookie, request)))
            return
        with suppress(BKException):
            await pool.request(bookie.bookie_id, OPERATIONS[type(request)], request, _CALL_SECONDS)

    @staticmethod
    async def _at_once(name: str, bookie: SimulatedBookie, request: Request) -> None:
        """Sends the token and the request in one write, as none of our clients does."""
        token = messages.AuthRequest(request.txn_id + 1, TOKEN_PLUGIN, name.encode())
        encode = v2.encode_request if isinstance(request, messages.BatchReadRequest) else v3.encode_request
        with suppress(OSError):
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(asyncio.Protocol, bookie.name, BOOKIE_PORT)
            transport.write(v3.encode_request(token) + encode(request))
            await asyncio.sleep(_CALL_SECONDS)
            transport.close()

    def _request(self, name: str, txn_id: int) -> Request:
        rng = self._rng
        number = rng.choice(self._ledgers[-3:]) if self._ledgers and rng.random() < 0.9 else _NEVER_MADE
        entry_id = rng.choice((0, rng.randint(1, 3), rng.randrange(_NEAR)))
        lac = STRANGE_LAC + entry_id
        match rng.choice(_MORE_THAN_ADDING if name == APPENDER else _ALL):
            case "recovery add":
                return self._add(name, txn_id, number, entry_id, recovery=True)
            case "add":
                return self._add(name, txn_id, number, entry_id)
            case "fence":
                return self._read(txn_id, number, entry_id, KEY)
            case "read":
                return self._read(txn_id, number, entry_id)
            case "lac":
                return messages.WriteLacRequest(txn_id, number, lac, KEY, encode_lac(_DIGEST, number, lac))
            case "force":
                return messages.ForceLedgerRequest(txn_id, number)
        return rng.choice((messages.ReadLacRequest, messages.ListEntriesRequest))(txn_id, number)

    def _read(self, txn_id: int, number: int, entry_id: int, key: bytes | None = None) -> Request:
        """With a key one that fences."""
        roll, fence = self._rng.random(), key is not None
        if roll < 0.3 and number <= MAX_UNSCOPED:  # the binary protocol has no scopes
            return messages.BatchReadRequest(txn_id, number, entry_id, 10, 1 << 16, fence, key)
        if roll > 0.8 and not fence:
            return ReadRequest(txn_id, number, LAST_ENTRY, previous_lac=entry_id, timeout_ms=500, piggyback=True)
        return ReadRequest(txn_id, number, self._rng.choice((LAST_ENTRY, entry_id)), fence, key)

    def _add(self, name: str, txn_id: int, number: int, entry_id: int, *, recovery: bool = False) -> AddRequest:
        self._writes += 1
        payload = payload_of(content(name, str(number), self._writes, 20))
        body = encode_entry(_DIGEST, number, entry_id, STRANGE_LAC, len(payload), payload)
        flags = 0 if recovery else self._rng.choice((0, 0, DEFERRED_SYNC))
        return AddRequest(txn_id, number, entry_id, KEY, body, recovery, flags)
