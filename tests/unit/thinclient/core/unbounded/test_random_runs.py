"""Clients that take a ledger from each other while messages are lost, late and doubled (U2 to U5, G1, G2)."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookgate.ledger.metadata import LedgerState
from bookgate.ledger.terms import FragmentCaps
from tests.unit.thinclient.core.unbounded.model import Client, Model

STEPS = 250
SIZES = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (2, 2, 1))


def run(seed: int) -> Model:
    """A run from a seed: random steps, then healing, in which every client's append has to succeed in turn."""
    rng = Random(seed)
    caps = FragmentCaps(max_entries=rng.choice((None, 2, 3)))
    model = Model(rng.choice(SIZES), spares=rng.randint(0, 2), caps=caps)
    clients = [model.client() for _ in range(rng.randint(2, 3))]
    clients[0].start()
    # In a third of the runs nothing is lost.
    trouble = rng.choice((0.0, 0.08, 0.2))
    for _ in range(STEPS):
        step(model, rng, clients, trouble)
        model.check()
    heal(model, clients)
    return model


def step(model: Model, rng: Random, clients: list[Client], trouble: float) -> None:
    client = rng.choice(clients)
    what = rng.random()
    if what < 0.02:
        client.begin_take_over()
    elif what < 0.2 and client.writer is not None and client.failed is None:
        client.append()
    elif what < 0.25 and client.retry_due:
        client.retry()
    elif model.messages:
        index = rng.randrange(min(len(model.messages), 6)) if rng.random() < 0.7 else rng.randrange(len(model.messages))
        disturb(model, rng, index) if rng.random() < trouble else model.deliver(index)


def disturb(model: Model, rng: Random, index: int) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        model.lose(index)
    elif kind == 1:
        # A connection doubles no request; what comes late after it was given up is `time_out`.
        model.deliver(index, twice="truncating" not in model.messages[index].text)
    elif kind == 2:
        model.time_out(index)
    else:
        model.refuse(index)


def heal(model: Model, clients: list[Client]) -> None:
    """Progress: with nothing lost any more each client takes over, appends, and the last one closes (P12, G2)."""
    for client in clients:
        client.begin_take_over()
        quiet(model, clients)
        assert client.failed is None, f"{client.failed}"
        assert client.writer is not None
        assert model.metadata.state is LedgerState.OPEN
        for _ in range(4):
            client.append()
        quiet(model, clients)
        assert client.writer.pending_count == 0
        model.check()
    clients[-1].close()
    model.check()
    assert model.metadata.is_closed
    assert model.metadata.last_entry_id in model.acknowledged


def quiet(model: Model, clients: list[Client]) -> None:
    for _ in range(20):
        while model.messages:
            model.deliver(0)
            model.check()
        due = [client for client in clients if client.retry_due]
        if not due:
            return
        for client in due:
            client.retry()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
@example(2218)  # a bookie answered twice that it has no entry 7, which two others had confirmed
def test_nothing_acknowledged_is_lost_and_no_log_diverges(seed: int) -> None:
    run(seed)
