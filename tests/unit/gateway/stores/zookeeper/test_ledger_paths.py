from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.gateway.stores.zookeeper.ledger_paths import (
    FIRST_LONG_ID,
    LARGEST_ID,
    LONG,
    SHORT,
    IdRange,
    LedgerPaths,
    paths_of,
)
from bookgate.ledger.errors import IncorrectParameterException
from tests.conformance.golden import rows

ROOT = "/ledgers"
MANAGERS = ("flat", "legacyhierarchical", "hierarchical", "longhierarchical")
EDGES = (0, 9_999, 10_000, 99_999_999, 100_000_000, FIRST_LONG_ID - 1, FIRST_LONG_ID, 2**31, 10**10, LARGEST_ID)
ids_of = {
    "flat": st.integers(0, LARGEST_ID) | st.sampled_from(EDGES),
    "legacyhierarchical": st.integers(0, 10**10 - 1) | st.sampled_from(EDGES[:-2]),
    "hierarchical": st.integers(0, LARGEST_ID) | st.integers(0, 20_000) | st.sampled_from(EDGES),
    "longhierarchical": st.integers(0, LARGEST_ID) | st.integers(0, 20_000) | st.sampled_from(EDGES),
}


class Nodes:
    """A tree of names, as ZooKeeper would have it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.children_of: dict[str, set[str]] = {}
        for path in paths:
            while path:
                parent, _, name = path.rpartition("/")
                self.children_of.setdefault(parent, set()).add(name)
                path = parent

    async def children(self, path: str) -> list[str]:
        return list(self.children_of.get(path, ()))


SPECIAL = tuple(f"{ROOT}/{name}" for name in ("LAYOUT", "available/readonly", "idgen/ID-", "idgen-long", "0a", "L12"))


async def listed(paths: LedgerPaths, nodes: Nodes, wanted: IdRange) -> list[int]:
    found: list[int] = []
    async for run in paths.runs(nodes.children, wanted):
        assert run
        found += run
    return found


@pytest.mark.parametrize("row", rows("misc.jsonl", "ledgerPath"), ids=lambda row: str(row["ledgerId"]))
def test_paths_are_those_of_java(row: dict[str, object]) -> None:
    ledger_id = int(str(row["ledgerId"]))
    assert paths_of("hierarchical", ROOT).path(ledger_id) == f"{ROOT}{row['hybrid']}"
    assert paths_of("longhierarchical", ROOT).path(ledger_id) == f"{ROOT}{row['long']}"
    assert paths_of("flat", ROOT).path(ledger_id) == f"{ROOT}/L{row['flat']}"
    if ledger_id < 10**10:
        assert paths_of("legacyhierarchical", ROOT).path(ledger_id) == f"{ROOT}{row['hierarchical_short']}"


def test_short_tree_refuses_ids_that_it_would_cut() -> None:
    with pytest.raises(IncorrectParameterException):
        paths_of("legacyhierarchical", ROOT).path(10**10)


@pytest.mark.asyncio
@pytest.mark.parametrize("manager", MANAGERS)
@given(data=st.data())
async def test_listing_is_exactly_the_wanted_ids_ascending(manager: str, data: st.DataObject) -> None:
    ids = data.draw(st.sets(ids_of[manager], max_size=30))
    after = data.draw(st.none() | ids_of[manager])
    before = data.draw(st.none() | ids_of[manager])
    paths = paths_of(manager, ROOT)
    nodes = Nodes([*SPECIAL, *(paths.path(ledger_id) for ledger_id in ids)])
    wanted = IdRange(-1 if after is None else after, LARGEST_ID + 1 if before is None else before)

    found = await listed(paths, nodes, wanted)

    assert found == sorted(i for i in ids if wanted.after < i < wanted.before)


@pytest.mark.asyncio
@given(short=st.sets(st.integers(0, 10**10 - 1)), long=st.sets(st.integers(0, LARGEST_ID) | st.integers(0, 10**10)))
async def test_composite_listing_ascends_whichever_tree_holds_an_id(short: set[int], long: set[int]) -> None:
    nodes = Nodes([*(ROOT + SHORT.path(i) for i in short), *(ROOT + LONG.path(i) for i in long)])
    assert await listed(paths_of("hierarchical", ROOT), nodes, IdRange()) == sorted(short | long)


@pytest.mark.asyncio
@pytest.mark.parametrize("manager", MANAGERS)
async def test_listing_that_fails_raises(manager: str) -> None:
    paths = paths_of(manager, ROOT)
    nodes = Nodes([paths.path(i) for i in (1, 5_000_000, 123_456_789)])
    reads = 0

    async def failing(path: str) -> list[str]:
        nonlocal reads
        reads += 1
        if reads == fail_at:
            raise OSError("store is away")
        return await nodes.children(path)

    fail_at = 0
    await listed(paths, Nodes(()), IdRange())
    async for _ in paths.runs(failing, IdRange()):
        pass
    for at in range(1, reads + 1):
        reads, fail_at = 0, at
        with pytest.raises(OSError, match="away"):
            async for _ in paths.runs(failing, IdRange()):
                pass


@pytest.mark.asyncio
async def test_subtrees_outside_the_range_are_not_read() -> None:
    paths = paths_of("hierarchical", ROOT)
    nodes = Nodes([paths.path(i) for i in (1, 10_001, 20_001, 2_000_000_000, 2**40)])
    read: list[str] = []

    async def recording(path: str) -> list[str]:
        read.append(path)
        return await nodes.children(path)

    found = [i async for run in paths.runs(recording, IdRange(10_001, 30_000)) for i in run]
    assert found == [20_001]
    assert f"{ROOT}/00/0002" in read
    assert not {f"{ROOT}/00/0000", f"{ROOT}/20", f"{ROOT}/000/0001"} & set(read)


@pytest.mark.parametrize("manager", MANAGERS)
@given(st.data())
def test_the_ledger_at_a_path_is_the_one_whose_path_it_is(manager: str, data: st.DataObject) -> None:
    paths, ledger_id = paths_of(manager, ROOT), data.draw(ids_of[manager])
    path = paths.path(ledger_id)
    assert paths.ledger_id_at(path) == ledger_id
    for other in (f"/x{path}", f"{path}/child", f"{path}x", path.rpartition("/")[0], path.replace("L", "")):
        assert paths.ledger_id_at(other) is None


@pytest.mark.parametrize("manager", MANAGERS)
def test_other_nodes_are_no_ledgers(manager: str) -> None:
    paths = paths_of(manager, ROOT)
    marks = f"{ROOT}/underreplication/ledgers/0000/0000/0000/007b/urL0000000123"
    for path in (ROOT, *SPECIAL, marks, f"{ROOT}/999/9999/9999/9999/L9999"):
        assert paths.ledger_id_at(path) is None
