"""Messages about wrong values in plain words."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from bookgate.runtime.wording import plain


@pytest.mark.parametrize(
    ("adapter", "value", "said"),
    [
        (TypeAdapter(int), "x", "it should be a valid integer"),
        (TypeAdapter(float), "x", "it should be a valid number"),
        (TypeAdapter(bool), "x", "it should be a valid boolean"),
    ],
)
def test_the_terms_of_the_library_are_left_out(adapter: TypeAdapter[object], value: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(value)
    assert plain(caught.value.errors()[0]["msg"]) == said


def test_a_rule_of_ours_speaks_for_itself() -> None:
    assert plain("Value error, 'md5' is not one of 'crc32'.") == "'md5' is not one of 'crc32'"
