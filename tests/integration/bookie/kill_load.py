"""Load on a bookie that may die at any moment, what it acknowledged, and whether it is all there.

The load is drawn from a seed: adds of many sizes to some growing ledgers, adds that may be acknowledged before they are
durable (with forces behind them), fences of ledgers with and without entries, explicit LACs, recovery adds to fenced
ledgers. Whatever is asked is kept with whether it was acknowledged, so that the next life can be asked for it.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bookgate.ledger.wire import messages
from bookgate.ledger.wire.messages import Request, Response, Status
from tests.integration.bookie.entry_client import KEY, WRONG_KEY, EntryClient, add, fence, lac_packet, read

GROWING = 24
WINDOW = 300
_DEFERRED_SYNC = 1

_SIZES = (0, 1, 17, 100, 100, 400, 400, 1000, 1000, 3000, 3000, 9000, 40_000)


def payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    unit = f"{ledger_id}/{entry_id};".encode()
    return (unit * (size // len(unit) + 1))[:size]


@dataclass
class Known:
    """What a ledger must hold: entries with their packets, newest last; the greatest acknowledged LAC; its fence."""

    entries: dict[int, bytes] = field(default_factory=dict)
    lac: int = -1
    fenced: bool = False


class KillLoad:
    """One client's view of a bookie over all its lives."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known: dict[int, Known] = {}
        self.fresh: list[tuple[int, int]] = []
        """Acknowledged entries that no later life was asked for yet."""
        self.acknowledged = 0
        self._next_ledger = itertools.count(1)
        self._growing = [(next(self._next_ledger), 0) for _ in range(GROWING)]
        self._fenced: list[tuple[int, int]] = []

    # Load

    def run(self, client: EntryClient, answers: int, kill: Callable[[], None]) -> None:
        """Keeps requests under way until so many answers have come, then kills, and takes what was still sent."""
        pending: dict[int, Callable[[], None]] = {}
        unforced: list[Callable[[], None]] = []
        taken = 0
        try:
            while taken < answers:
                batch = list(itertools.islice(self._requests(pending, unforced), WINDOW - len(pending)))
                client.send(*batch)
                for _ in range(min(answers - taken, WINDOW // 3)):
                    self._take(client.receive(), pending)
                    taken += 1
            kill()
            while pending:
                self._take(client.receive(), pending)
        except (ConnectionError, TimeoutError):
            return

    def _take(self, response: Response, pending: dict[int, Callable[[], None]]) -> None:
        assert response.status in (Status.EOK, Status.ENOENTRY), response
        pending.pop(response.txn_id)()
        self.acknowledged += 1

    def _requests(
        self, pending: dict[int, Callable[[], None]], unforced: list[Callable[[], None]]
    ) -> Iterator[Request]:
        """An endless load; each request is entered into `pending` with what its acknowledgement means."""
        while True:
            kind = self.random.random()
            if kind < 0.80:
                request, acknowledged = self._add()
            elif kind < 0.88:
                request, durable = self._add(write_flags=_DEFERRED_SYNC)
                acknowledged = _later(unforced, durable)
            elif kind < 0.90:
                request = messages.ForceLedgerRequest(add(1, 0).txn_id, self.random.choice(self._growing)[0])
                # The force covers what had been acknowledged when it was sent.
                acknowledged = _all(list(unforced))
                unforced.clear()
            elif kind < 0.95:
                request, acknowledged = self._write_lac()
            elif kind < 0.98 or not self._fenced:
                request, acknowledged = self._fence()
            else:
                request, acknowledged = self._recovery_add()
            pending[request.txn_id] = acknowledged
            yield request

    def _add(self, write_flags: int = 0) -> tuple[Request, Callable[[], None]]:
        slot = self.random.randrange(GROWING)
        ledger_id, entry_id = self._growing[slot]
        self._growing[slot] = (ledger_id, entry_id + 1)
        request = add(ledger_id, entry_id, payload(ledger_id, entry_id, self.random.choice(_SIZES)))
        return request._replace(write_flags=write_flags), self._entry_kept(ledger_id, entry_id, request.body)

    def _recovery_add(self) -> tuple[Request, Callable[[], None]]:
        place = self.random.randrange(len(self._fenced))
        ledger_id, entry_id = self._fenced[place]
        self._fenced[place] = (ledger_id, entry_id + 1)
        request = add(ledger_id, entry_id, payload(ledger_id, entry_id, 300), recovery=True)
        return request, self._entry_kept(ledger_id, entry_id, request.body)

    def _fence(self) -> tuple[Request, Callable[[], None]]:
        if self.random.random() < 0.5:
            ledger_id, entry_id = next(self._next_ledger), 0
        else:
            slot = self.random.randrange(GROWING)
            ledger_id, entry_id = self._growing[slot]
            self._growing[slot] = (next(self._next_ledger), 0)

        def fenced() -> None:
            self._of(ledger_id).fenced = True
            self._fenced.append((ledger_id, entry_id))

        return fence(ledger_id), fenced

    def _write_lac(self) -> tuple[Request, Callable[[], None]]:
        ledger_id, entry_id = self.random.choice(self._growing)
        txn_id = add(1, 0).txn_id

        def kept() -> None:
            known = self._of(ledger_id)
            known.lac = max(known.lac, entry_id)

        return messages.WriteLacRequest(txn_id, ledger_id, entry_id, KEY, lac_packet(ledger_id, entry_id)), kept

    def _entry_kept(self, ledger_id: int, entry_id: int, body: bytes) -> Callable[[], None]:
        def kept() -> None:
            self._of(ledger_id).entries[entry_id] = body
            self.fresh.append((ledger_id, entry_id))

        return kept

    def _of(self, ledger_id: int) -> Known:
        return self.known.setdefault(ledger_id, Known())

    # Verification

    def verify(self, client: EntryClient, *, everything: bool = False) -> None:
        """Asks for what was acknowledged since the last time and a sample of the rest, or for everything."""
        entries = [(ledger_id, entry_id) for ledger_id, known in self.known.items() for entry_id in known.entries]
        ledgers = list(self.known)
        if not everything:
            entries = [*self.fresh, *self.random.sample(entries, min(200, len(entries)))]
            touched = {ledger_id for ledger_id, _ in self.fresh} | set(ledgers[-60:])
            ledgers = sorted(touched | set(self.random.sample(ledgers, min(20, len(ledgers)))))
        self._verify_entries(client, entries)
        self._verify_fences(client, [ledger_id for ledger_id in ledgers if self.known[ledger_id].fenced])
        self._verify_lacs(client, [ledger_id for ledger_id in ledgers if self.known[ledger_id].lac >= 0])
        self.fresh.clear()

    def _verify_entries(self, client: EntryClient, entries: list[tuple[int, int]]) -> None:
        answers = _ask_all(client, (read(*entry) for entry in entries))
        for (ledger_id, entry_id), response in zip(entries, answers, strict=True):
            assert isinstance(response, messages.ReadResponse)
            assert response.status == Status.EOK, f"entry {entry_id} of ledger {ledger_id}: {response.status}"
            assert response.body == self.known[ledger_id].entries[entry_id], f"entry {entry_id} of ledger {ledger_id}"

    def _verify_fences(self, client: EntryClient, ledgers: list[int]) -> None:
        for key, status in ((KEY, Status.EFENCED), (WRONG_KEY, Status.EUA)):
            answers = _ask_all(client, (add(ledger_id, 1_000_000, key=key) for ledger_id in ledgers))
            for ledger_id, response in zip(ledgers, answers, strict=True):
                assert response.status == status, f"an add to fenced ledger {ledger_id}: {response.status}"

    def _verify_lacs(self, client: EntryClient, ledgers: list[int]) -> None:
        wanted = (messages.ReadLacRequest(add(1, 0).txn_id, ledger_id) for ledger_id in ledgers)
        for ledger_id, response in zip(ledgers, _ask_all(client, wanted), strict=True):
            assert isinstance(response, messages.ReadLacResponse)
            assert response.lac_body is not None, f"the LAC of ledger {ledger_id} is lost"
            assert struct.unpack_from(">q", response.lac_body, 8)[0] >= self.known[ledger_id].lac, f"ledger {ledger_id}"


def _later(unforced: list[Callable[[], None]], durable: Callable[[], None]) -> Callable[[], None]:
    return lambda: unforced.append(durable)


def _all(calls: list[Callable[[], None]]) -> Callable[[], None]:
    def call() -> None:
        for each in calls:
            each()

    return call


def _ask_all(client: EntryClient, wanted: Iterable[Request]) -> list[Response]:
    """Answers in the order of the requests, with a bounded number under way."""
    order: list[int] = []
    answers: dict[int, Response] = {}
    remaining = iter(wanted)
    while batch := list(itertools.islice(remaining, 100)):
        client.send(*batch)
        for request in batch:
            order.append(request.txn_id)
            response = client.receive()
            answers[response.txn_id] = response
    return [answers[txn_id] for txn_id in order]
