"""Where marks and locks are."""

from __future__ import annotations

from bookgate.gateway.stores.zookeeper.replication_paths import ReplicationPaths
from bookgate.ledger.ledger_id import LedgerId

PATHS = ReplicationPaths("/ledgers")


def test_marks_and_locks_of_scopes_are_where_bookkeeper_does_not_look() -> None:
    ledger_id, own = LedgerId(-9, 7), "/ledgers/underreplication/bookgate/scoped"
    assert PATHS.mark(ledger_id.number).startswith(f"{own}/ledgers/")
    assert PATHS.mark(ledger_id.number).endswith(f"/0000/0000/0000/0007/urL{ledger_id.qualified_name}")
    assert PATHS.lock(ledger_id.number) == f"{own}/locks/urL{ledger_id.qualified_name}"
    assert PATHS.marks_above(PATHS.mark(ledger_id.number)) == f"{own}/ledgers"


def test_those_of_scope_0_are_where_bookkeeper_has_them() -> None:
    assert PATHS.mark(7) == "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
    assert PATHS.lock(7) == "/ledgers/underreplication/locks/urL0000000007"
    assert PATHS.marks_above(PATHS.mark(7)) == "/ledgers/underreplication/ledgers"
