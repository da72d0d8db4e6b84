"""The model of docs/scale.md, checked: `make bench-scale`; `QUICK=1` for a minute or two.

`PART=gateway,embedded,bookie,repair` measures some parts only. Each is measured at a small size, several times, which
gives its constants, and at a large one, which the model (`scale_model`) predicts from them. Predictions are thus of the
same machine, and nothing in them comes from the large run but its size and, where clients ping meanwhile, its
duration. `report` shows the measured figure beside the prediction; `PART=example` prints the worked example of the
page from the page's constants, and measures nothing. `CLIENTS=10000` connects more to the one gateway of the large run,
on a machine with cores for them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from benchmarks.harness import QUICK, RESULTS, Row, figures, measured, report
from benchmarks.scale_bookie import ENTRY_BYTES, bookie_figures, repair_figures
from benchmarks.scale_gateway import Size, embedded_figures, gateway_figures
from benchmarks.scale_model import CELLS, EXAMPLE, MICRO, Constants, Model, Workload

_ROUNDS = 1 if QUICK else 3
_SMALL = Size(
    clients=100 if QUICK else 400,
    ledgers=20_000 if QUICK else 100_000,
    listed_with_metadata=20_000,
    creations=1_000,
    idle_seconds=10,
)
_LARGE = Size(
    clients=int(os.environ.get("CLIENTS", 500 if QUICK else 1_000)),
    ledgers=60_000 if QUICK else 1_000_000,
    listed_with_metadata=20_000 if QUICK else 100_000,
    creations=2_000 if QUICK else 5_000,
    idle_seconds=10 if QUICK else 60,
    processes=2,
)
_FEW_BOOKIES, _SOME_BOOKIES, _MANY_BOOKIES = 5, 12, 30
_EMBEDDED = (20_000, 100_000) if QUICK else (100_000, 10_000_000)
_INDEXED = (20_000, 50_000) if QUICK else (50_000, 300_000)
_BOOKIE_LEDGERS = (500, 2_000) if QUICK else (2_000, 50_000)
_BOOKIE_ENTRIES, _FEW_LEDGERS = 10, 4
_REPAIRED = (50, 200) if QUICK else (300, 3_000)
_GIB = 1024**3

Figures = Mapping[str, float]
_spreads: dict[str, tuple[float, float, float]] = {}
"""Median, least and greatest of each constant, by part and name."""


def _constants(part: str, runs: Sequence[Figures]) -> dict[str, float]:
    """The medians; they are kept, with their spreads, and shown."""
    found: dict[str, float] = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        found[name] = median(values)
        _spreads[f"{part}: {name}"] = (found[name], min(values), max(values))
        print(f"{part}: {name} {found[name]:,.6g} ({min(values):,.6g} to {max(values):,.6g})", flush=True)
    return found


def _predicted(name: str, unit: str, predicted: float, found: float) -> Row:
    """Ours is what was measured, the peer what was predicted."""
    return measured(figures(name, unit, [found], [predicted], "predicted", up=False))


# --- gateway and ZooKeeper --------------------------------------------------------------------------------------------


def _by_bookies(few: Figures, many: Figures) -> dict[str, float]:
    """Discovery's costs for an answer and for a bookie in it, and a connection's own, from two numbers of bookies."""
    found: dict[str, float] = {}
    for tail, bare in (("cpu", "discovery_cpu"), ("store_cpu", "discovery_store_cpu")):
        step = (many[f"discovery_{tail}"] - few[f"discovery_{tail}"]) / (_MANY_BOOKIES - _FEW_BOOKIES)
        found[f"discovery_bookie_{tail}"] = step
        found[bare] = few[f"discovery_{tail}"] - step * _FEW_BOOKIES
    found["client_bookie_bytes"] = (many["client_bytes"] - few["client_bytes"]) / (_MANY_BOOKIES - _FEW_BOOKIES)
    found["client_bytes"] = few["client_bytes"] - found["client_bookie_bytes"] * _FEW_BOOKIES
    found["hello_cpu"] = few["connect_cpu"] - few["discovery_cpu"]
    found["ping_cpu"] = few["idle_cpu"]
    return found


def gateway() -> list[Row]:
    runs = [gateway_figures(_SMALL, 1024, _FEW_BOOKIES) for _ in range(_ROUNDS)]
    few = _constants("gateway", runs)
    many = _constants("30 bookies", [gateway_figures(_SMALL, 1024, _MANY_BOOKIES, only_calls=True)])
    model = Model(Constants.of(few | _constants("both", [_by_bookies(few, many)])))
    found = gateway_figures(_LARGE, 6144, _SOME_BOOKIES)
    _constants("large run", [found])
    return [*_client_rows(model, found), *_store_rows(model, found)]


def _client_rows(model: Model, found: Figures) -> list[Row]:
    size, constants = _LARGE, model.constants
    clients, bookies = size.clients, _SOME_BOOKIES
    name = f"{clients:,} clients"

    def beside(window: str, share: float = 1.0) -> float:
        """Seconds of CPU that clients cost by being there meanwhile."""
        return share * found[f"{window}_window"] * clients * model.idle_cpu(bookies) * MICRO

    connection = clients * model.connect_cpu(bookies) * MICRO + beside("connect", 0.5)
    creations = size.creations * constants.create_cpu * MICRO + beside("create")
    each = size.subscriptions_each
    streams = clients * constants.stream_bytes
    return [
        _predicted(
            f"{name}: gateway's memory",
            "MiB",
            model.gateway_bytes(clients, 0, bookies) / 2**20,
            (found["gateway_base_bytes"] + clients * found["client_bytes"]) / 2**20,
        ),
        _predicted(f"{name}: sessions with ZooKeeper, and the lister's", "", 2, found["store_sessions"]),
        _predicted(f"{name}: gateway's CPU to connect", "s", connection, clients * found["connect_cpu"] * MICRO),
        _predicted(
            f"{name}: gateway's CPU while idle",
            "cores",
            clients * model.idle_cpu(bookies) * MICRO,
            clients * found["idle_cpu"] * MICRO,
        ),
        _predicted(
            f"{name}: ZooKeeper's CPU while idle",
            "cores",
            clients / model.limits.discovery_period * model.discovery_store_cpu(bookies) * MICRO,
            clients * found["idle_store_cpu"] * MICRO,
        ),
        _predicted(
            f"{size.creations:,} creations: gateway's CPU, clients beside it",
            "s",
            creations,
            size.creations * found["create_cpu"] * MICRO,
        ),
        _predicted(
            f"{clients * each:,} subscriptions: gateway's memory",
            "MiB",
            (streams + clients * (each - 1) * constants.subscription_bytes) / 2**20,
            clients * (found["stream_bytes"] + (each - 1) * found["subscription_bytes"]) / 2**20,
        ),
        _predicted(f"{clients * each:,} subscriptions: watches", "", clients * each, found["watches"]),
    ]


def _store_rows(model: Model, found: Figures) -> list[Row]:
    ledgers, constants = _LARGE.ledgers, model.constants
    load = Workload(clients=0, ledgers=ledgers, bookies=1)
    name = f"ZooKeeper with {ledgers:,} ledgers"
    collection = model.collection_store_cores(load) * model.limits.collection_period
    return [
        _predicted(
            f"{name}: heap", "GiB", model.store_heap_bytes(load) / _GIB, ledgers * found["ledger_heap_bytes"] / _GIB
        ),
        _predicted(
            f"{name}: snapshot",
            "MiB",
            model.snapshot_bytes(load) / 2**20,
            ledgers * found["ledger_snapshot_bytes"] / 2**20,
        ),
        _predicted(f"{name}: listing", "s", model.listing_seconds(ledgers), ledgers * found["list_seconds"]),
        _predicted(
            f"{name}: listing, gateway's CPU",
            "s",
            ledgers * constants.list_cpu * MICRO,
            ledgers * found["list_cpu"] * MICRO,
        ),
        _predicted(f"{name}: collection", "s", model.collection_seconds(ledgers), ledgers * found["collect_seconds"]),
        _predicted(
            f"{name}: collection, ZooKeeper's CPU", "s", collection, ledgers * found["collect_store_cpu"] * MICRO
        ),
        _predicted(
            f"{found['read']:,.0f} of them: index without its limit",
            "s",
            found["read"] * constants.index_seconds,
            found["read"] * found["index_seconds"],
        ),
    ]


# --- the embedded store -----------------------------------------------------------------------------------------------


def embedded() -> list[Row]:
    runs = [embedded_figures(_EMBEDDED[0], _INDEXED[0]) for _ in range(_ROUNDS)]
    model, ledgers, indexed = Model(Constants.of(_constants("embedded", runs))), _EMBEDDED[1], _INDEXED[1]
    found = embedded_figures(ledgers, indexed)
    _constants("large embedded", [found])
    name, index = f"embedded store of {ledgers:,} ledgers", f"{indexed:,} of them"
    return [
        _predicted(
            f"{name}: file", "MiB", model.embedded_bytes(ledgers) / 2**20, ledgers * found["ledger_file_bytes"] / 2**20
        ),
        _predicted(f"{name}: listing", "s", model.listing_seconds(ledgers), ledgers * found["list_seconds"]),
        _predicted(f"{name}: collection", "s", model.collection_seconds(ledgers), ledgers * found["collect_seconds"]),
        _predicted(
            f"{index}: listed with metadata",
            "s",
            model.record_listing_seconds(indexed),
            indexed * found["record_seconds"],
        ),
        _predicted(
            f"{index}: index without its limit",
            "s",
            indexed * model.constants.index_seconds,
            indexed * found["index_seconds"],
        ),
        _predicted(
            f"{index}: index's memory",
            "MiB",
            model.index_bytes(indexed) / 2**20,
            indexed * found["index_bytes"] / 2**20,
        ),
    ]


# --- bookies ----------------------------------------------------------------------------------------------------------


def bookie() -> list[Row]:
    return [row for storage in ("sorted", "db") for row in _bookie_rows(storage)]


def _by_ledgers(many: Figures, few: Figures) -> dict[str, float]:
    """CPU of an add, and of a ledger beside its adds, from two numbers of ledgers for the same number of entries."""
    shares = (1 / _BOOKIE_ENTRIES, _FEW_LEDGERS / (_BOOKIE_LEDGERS[0] * _BOOKIE_ENTRIES))
    ledger = (many["add_cpu"] - few["add_cpu"]) / (shares[0] - shares[1])
    return {"add_cpu": few["add_cpu"] - ledger * shares[1], "bookie_ledger_cpu": ledger}


def _bookie_rows(storage: str) -> list[Row]:
    share = _BOOKIE_LEDGERS[0] / _BOOKIE_LEDGERS[1]

    def runs(ledgers: int, entries: int) -> list[Figures]:
        return [bookie_figures(storage, ledgers, entries, share) for _ in range(_ROUNDS)]

    small = _constants(storage, runs(_BOOKIE_LEDGERS[0], _BOOKIE_ENTRIES))
    few = _constants(f"{storage}, few", runs(_FEW_LEDGERS, _BOOKIE_LEDGERS[0] * _BOOKIE_ENTRIES // _FEW_LEDGERS))
    found = bookie_figures(storage, _BOOKIE_LEDGERS[1], _BOOKIE_ENTRIES)
    _constants(f"large {storage}", [found])
    measured_here = {
        "bookie_read_cpu": small["read_cpu"],
        "bookie_base_bytes": small["base_bytes"],
        "entry_overhead_bytes": small["log_bytes"] - ENTRY_BYTES,
        f"{storage}_ledger_bytes": small["index_bytes"],
    }
    constants = Constants.of(measured_here | _constants(f"{storage}, both", [_by_ledgers(small, few)]))
    model, ledgers = Model(constants), _BOOKIE_LEDGERS[1]
    load = Workload(0, ledgers, bookies=1, copies=1, entries_each=_BOOKIE_ENTRIES, entry_bytes=ENTRY_BYTES)
    adds, name = ledgers * _BOOKIE_ENTRIES, f"{storage}, {ledgers:,} ledgers of {_BOOKIE_ENTRIES} entries"
    disk = ledgers * (found["index_bytes"] + _BOOKIE_ENTRIES * found["log_bytes"])
    journal = adds * (ENTRY_BYTES + constants.entry_overhead_bytes)
    return [
        _predicted(
            f"{name}: CPU of adds",
            "s",
            (adds * constants.add_cpu + ledgers * constants.bookie_ledger_cpu) * MICRO,
            adds * found["add_cpu"] * MICRO,
        ),
        _predicted(f"{name}: CPU a read", "µs", constants.bookie_read_cpu, found["read_cpu"]),
        _predicted(f"{name}: journal", "MiB", journal / 2**20, adds * found["journal_bytes"] / 2**20),
        _predicted(
            f"{name}: disk", "MiB", model.disk_bytes_of_a_bookie(load, db=storage == "db") / 2**20, disk / 2**20
        ),
        _predicted(
            f"{name}: most memory", "MiB", model.bookie_bytes(ledgers, adds) / 2**20, found["peak_bytes"] / 2**20
        ),
    ]


def repair() -> list[Row]:
    small = _constants("repair", [repair_figures(_REPAIRED[0]) for _ in range(_ROUNDS)])
    model, ledgers = Model(Constants.of(small)), _REPAIRED[1]
    found = repair_figures(ledgers)
    _constants("large repair", [found])
    load = Workload(0, ledgers, bookies=1, copies=1)
    name = f"loss of a bookie with {ledgers:,} small ledgers"
    return [
        _predicted(f"{name}: until whole", "s", model.repair_seconds(load), ledgers * found["repair_seconds"]),
        _predicted(f"{name}: worker's CPU", "s", model.repair_cpu_seconds(load), ledgers * found["repair_cpu"] * MICRO),
        _predicted(f"{name}: calls to the store", "", model.repair_store_calls(load), ledgers * found["repair_calls"]),
    ]


# --- the example ------------------------------------------------------------------------------------------------------


def example_lines(model: Model, whole: Workload, cells: int) -> list[str]:
    """The worked example of the page: all in one cell, and in so many."""
    lines = []
    for name, load, count in (("one cell", whole, 1), (f"each of {cells} cells", whole.cell(cells), cells)):
        gateways = model.gateways(load)
        lines += [
            f"{name}:",
            f"  gateways {gateways} ({model.gateway_cores(load):.2f} cores), in all {gateways * count}",
            f"  memory of a gateway {_gateway_megabytes(model, load, gateways):,.0f} MB",
            f"  clients of a lost gateway connected after {model.reconnection_seconds(load, gateways):,.1f} s",
            f"  ZooKeeper: heap {model.store_heap_bytes(load) / 1e9:,.1f} GB,"
            f" snapshot {model.snapshot_bytes(load) / 1e9:,.1f} GB, start {model.store_start_seconds(load):,.0f} s",
            f"  ZooKeeper: {model.store_cores(load):.2f} cores,"
            f" of them collections {model.collection_store_cores(load):.2f}",
            f"  bookies by need {model.bookies(load)} ({model.bookie_cores(load):.2f} cores),"
            f" chosen {load.bookies:.0f}",
            f"  of a bookie: {model.ledgers_of_a_bookie(load):,.0f} ledgers, disk"
            f" {model.disk_bytes_of_a_bookie(load, db=True) / 1e12:.2f} TB (db),"
            f" {model.disk_bytes_of_a_bookie(load, db=False) / 1e12:.2f} TB (sorted),"
            f" journal {model.journal_bytes(load) / 1e6:.2f} MB/s",
            f"  listing {model.listing_seconds(load.ledgers):,.0f} s,"
            f" with metadata {model.record_listing_seconds(load.ledgers):,.0f} s",
            f"  collection {model.collection_seconds(load.ledgers):,.0f} s",
            f"  index {model.index_seconds(load.ledgers):,.0f} s, {model.index_bytes(load.ledgers) / 1e9:.2f} GB",
            f"  repair of a bookie {model.repair_seconds(load) / 3600:.2f} h,"
            f" {model.repair_store_calls(load):,.0f} calls to the store",
        ]
    return lines


def _gateway_megabytes(model: Model, load: Workload, gateways: int) -> float:
    return model.gateway_bytes(load.clients / gateways, load.subscriptions_each, load.bookies) / 1e6


def _example() -> list[Row]:
    print("\n".join(example_lines(Model(), EXAMPLE, CELLS)))
    return []


PARTS: dict[str, Callable[[], list[Row]]] = {
    "gateway": gateway,
    "embedded": embedded,
    "bookie": bookie,
    "repair": repair,
    "example": _example,
}


def main() -> None:
    chosen = [name for name in os.environ.get("PART", "").split(",") if name]
    rows: list[Row] = []
    failed = []
    for name in chosen or PARTS:
        try:
            rows += PARTS[name]()
        except Exception:  # the other parts take minutes each, and do not depend on it
            traceback.print_exc()
            failed.append(name)
    report("scale", rows, whole=not chosen)
    if not chosen and not QUICK:
        (RESULTS / "scale_constants.json").write_text(json.dumps(_spreads, indent=2) + "\n")
    missed = [row.name for row in rows if not 1 / 1.5 <= row.ratio <= 1.5]
    print(f"predictions missed by more than 1.5 times: {missed or 'none'}", file=sys.stderr)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
