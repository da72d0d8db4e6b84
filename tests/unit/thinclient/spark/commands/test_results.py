"""What `bookgate spark sql` prints of rows."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import VariantVal

from bookgate.thinclient.spark.commands.results import printable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (bytearray(b"a\xff"), "a\ufffd"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 31), "2026-01-31"),
        (datetime(2026, 1, 31, 8, tzinfo=UTC), "2026-01-31T08:00:00+00:00"),
        (time(8, 30), "08:30:00"),
        (timedelta(days=1, seconds=2), "1 day, 0:00:02"),
        (VariantVal.parseJson('{"a":1}'), '{"a":1}'),
        ([timedelta(1)], ["1 day, 0:00:00"]),
        ({timedelta(1): b"x"}, {"1 day, 0:00:00": "x"}),
        (Row(entry_id=1, size=None), {"entry_id": 1, "size": None}),
    ],
)
def test_every_value_that_spark_has_is_json(value: object, shown: object) -> None:
    """As of `max(creation_time) - min(creation_time)`."""
    assert json.loads(json.dumps(printable(Row(x=value)), allow_nan=False)) == {"x": shown}


def test_columns_of_one_name_are_all_shown() -> None:
    """As those of a join of two tables."""
    assert printable(_row(["size", "size", "size_2", "size"], 1, 2, 3, 4)) == {
        "size": 1,
        "size_2": 2,
        "size_2_2": 3,
        "size_3": 4,
    }
    assert printable(Row(both=_row(["size", "size"], 1, 2))) == {"both": {"size": 1, "size_2": 2}}


def _row(names: list[str], *values: Any) -> Row:
    made = Row(*names)(*values)
    assert list(made.__fields__) == names
    return made
