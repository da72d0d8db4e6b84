"""Golden data made with Apache BookKeeper: one JSON object a line, inputs beside the bytes in hex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"


def rows(name: str, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of a file, of one kind if asked for."""
    with (VECTORS / name).open() as lines:
        parsed = [json.loads(line) for line in lines if line.strip()]
    return [row for row in parsed if kind is None or row.get("kind") == kind]


def payload(row: dict[str, Any]) -> bytes:
    return bytes.fromhex(row["payload"])
