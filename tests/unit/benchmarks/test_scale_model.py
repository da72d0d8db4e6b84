"""The formulas of the scale model: what grows with what, which bound decides, and that cells add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale import example_lines
from benchmarks.scale_model import CELLS, EXAMPLE, Constants, Limits, Model, Workload

MODEL = Model(Constants(), Limits())
CELL = EXAMPLE.cell(CELLS)


def test_a_cell_is_its_share_of_the_whole_and_keeps_what_each_ledger_has() -> None:
    assert (CELL.clients, CELL.ledgers, CELL.bookies) == (10_000, 10_000_000, 5)
    assert CELL.creations * CELLS == pytest.approx(EXAMPLE.creations)
    assert (CELL.entries_each, CELL.copies, CELL.subscriptions_each) == (EXAMPLE.entries_each, 3, 2)


def test_measured_constants_take_the_place_of_the_pages_and_unknown_figures_are_left_out() -> None:
    constants = Constants.of({"create_cpu": 1.0, "failed": 7.0})
    assert constants == replace(Constants(), create_cpu=1.0)


def test_an_idle_client_costs_its_pings_and_its_looks_for_gateways() -> None:
    model = Model(Constants(ping_cpu=50, discovery_cpu=1_000, discovery_bookie_cpu=100), Limits(discovery_period=20))
    assert model.idle_cpu(bookies=10) == 50 + 2_000 / 20


@pytest.mark.parametrize(
    ("load", "gateways"),
    [
        (Workload(clients=25_000, ledgers=1, bookies=3), 3),  # connections
        (Workload(clients=25_000, ledgers=1, bookies=3, subscriptions_each=1), 5),  # a second stream each
        (Workload(clients=25_000, ledgers=1, bookies=3, subscriptions_each=400), 10),  # subscriptions
        (Workload(clients=1, ledgers=1, bookies=3, creations=10_000), 20),  # CPU, half of a core each
    ],
)
def test_what_needs_most_gateways_decides(load: Workload, gateways: int) -> None:
    model = Model(Constants(ping_cpu=0, discovery_cpu=0, discovery_bookie_cpu=0, create_cpu=1_000))
    assert model.gateways(load) == gateways


def test_a_gateways_memory_has_a_second_stream_only_with_subscriptions() -> None:
    model = Model(Constants(gateway_base_bytes=100, client_bytes=10, stream_bytes=5, subscription_bytes=1))
    model = replace(model, constants=replace(model.constants, client_bookie_bytes=3))
    assert model.gateway_bytes(2, 0, bookies=0) == 120
    assert model.gateway_bytes(2, 3, bookies=1) == 100 + 2 * (10 + 3 + 5 + 2)


def test_collections_of_all_bookies_grow_with_the_square_of_a_cluster() -> None:
    whole, cell = MODEL.collection_store_cores(EXAMPLE), MODEL.collection_store_cores(CELL)
    assert whole == pytest.approx(cell * CELLS**2)


def test_a_watch_is_counted_once_for_each_ledger() -> None:
    model = Model(Constants(ledger_heap_bytes=0, watch_heap_bytes=1))
    assert model.store_heap_bytes(Workload(clients=10, ledgers=5, bookies=1, subscriptions_each=2)) == 5


def test_an_index_is_read_no_faster_than_its_limit() -> None:
    assert Model(Constants(index_seconds=1e-6)).index_seconds(1e6) == 200
    assert Model(Constants(index_seconds=1e-3)).index_seconds(1e6) == 1_000


def test_bookies_are_by_disk_by_cpu_and_one_more_than_copies() -> None:
    small = Workload(clients=0, ledgers=10, bookies=4, copies=3)
    assert MODEL.bookies(small) == 4
    model = Model(Constants(entry_overhead_bytes=0, db_ledger_bytes=0))
    assert model.bookies(replace(small, ledgers=100, entries_each=10, entry_bytes=100, disk_bytes=4_000)) == 100
    assert Model(Constants(add_cpu=10)).bookies(replace(small, adds=90_000)) == 6


def test_a_ledgers_beginning_costs_a_bookie_more_than_its_adds() -> None:
    model = Model(Constants(add_cpu=10, bookie_ledger_cpu=100, collect_cpu=0))
    load = Workload(clients=0, ledgers=1, bookies=3, copies=3, adds=1_000, creations=50)
    assert model.bookie_cores(load) == pytest.approx(3 * (10_000 + 5_000) * 1e-6)


def test_a_bookies_memory_ends_with_its_caches() -> None:
    model = Model(Constants(bookie_base_bytes=100, entry_overhead_bytes=0), Limits(write_cache_bytes=5_000))
    assert model.bookie_bytes(ledgers=1, entries=2) == 100 + 2_048 + 8_192
    assert model.bookie_bytes(ledgers=1e9, entries=1e9) == 100 + 5_000 + 64 * 2**20


def test_a_ledger_on_disk_is_its_entries_and_its_index() -> None:
    model = Model(Constants(entry_overhead_bytes=4, db_ledger_bytes=1, sorted_ledger_bytes=100))
    load = Workload(clients=0, ledgers=1, bookies=1, entries_each=2, entry_bytes=10)
    assert model.ledger_bytes(load, db=True) == 29
    assert model.ledger_bytes(load, db=False) == 128


def test_a_repair_takes_what_its_budget_or_its_ledgers_take() -> None:
    """An entry counts 4 KiB at least, read and stored."""
    load = Workload(clients=0, ledgers=1_000, bookies=4, copies=3, entries_each=100, entry_bytes=10)
    model = Model(Constants(repair_seconds=0.01), Limits(repair_bytes=750 * 4096))
    assert model.repair_seconds(load) == pytest.approx(750 * 100 * 4096 * 2 / (750 * 4096) / 3)
    assert model.repair_seconds(replace(load, entries_each=1)) == pytest.approx(750 * 0.01 / 3)


def test_clients_of_a_lost_gateway_are_shared_by_the_others() -> None:
    model = Model(Constants(hello_cpu=1_000, discovery_cpu=0, discovery_bookie_cpu=0))
    load = Workload(clients=1_000, ledgers=1, bookies=3)
    assert model.reconnection_seconds(load, gateways=1) == 1
    assert model.reconnection_seconds(load, gateways=5) == pytest.approx(0.05)


def test_the_example_has_the_whole_and_a_cell() -> None:
    lines = example_lines(MODEL, EXAMPLE, CELLS)
    assert [line for line in lines if not line.startswith(" ")] == ["one cell:", f"each of {CELLS} cells:"]
