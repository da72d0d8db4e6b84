"""What a bookie keeps of an unbounded ledger beside what it keeps of any.

Source: docs/protocol/unbounded-ledgers.md#bookie. Not its job: the rules (`storage.ledger_state`), the form on disk
(`file_format`, `rocksdb_rows`, `journal.format`).
"""

from __future__ import annotations

from typing import NamedTuple


class Terms(NamedTuple):
    """`fenced` says that no normal add of the present term is accepted; LAC and LAFR are the highest seen, or -1."""

    term: int
    fenced: bool
    known_lac: int
    lafr: int
