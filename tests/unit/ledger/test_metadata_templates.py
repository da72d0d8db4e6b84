"""Metadata that a listing builds from templates are those that the codec builds, and no message makes it keep more."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookgate.ledger import metadata_templates
from bookgate.ledger.errors import MetadataFormatException
from bookgate.ledger.metadata import DigestType, LedgerMetadata
from bookgate.ledger.metadata_codec import from_format, to_format
from bookgate.ledger.metadata_templates import MetadataTemplates, ledger_of, take_numbers
from bookgate.ledger.unbounded import close_unbounded, create_unbounded
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

UNBOUNDED = close_unbounded(create_unbounded(LedgerMetadata.new(("a:1", "b:1"), 2, 1)), 41, 400)
TEMPLATE = LedgerMetadata.new(("a:1", "b:1", "c:1"), 3, 2, password=b"secret", custom_metadata={"app": b"orders"})


@st.composite
def listed_metadata(draw: st.DrawFn) -> LedgerMetadata:
    """Few values each, so that equal templates with other ends are drawn."""
    metadata = LedgerMetadata.new(
        draw(st.sampled_from([("a:1", "b:1"), ("b:1", "c:1")])),
        draw(st.integers(1, 2)),
        1,
        draw(st.sampled_from(DigestType)),
        draw(st.sampled_from([b"", b"secret"])),
        draw(st.sampled_from([{}, {"app": b"orders"}, {"app": b"bills"}])),
        draw(st.sampled_from([None, 0, 1_700_000_000_000])),
    )
    if draw(st.booleans()):
        metadata = metadata.with_ensemble(draw(st.integers(1, 3)), ("b:1", "d:1"))
    if draw(st.booleans()):
        metadata = metadata.begin_recovery()
    if draw(st.integers(0, 3)):
        metadata = metadata.close(draw(st.integers(-1, 3)), draw(st.integers(0, 3)))
    return replace(metadata, creator_token=draw(st.integers(0, 2)))


@given(st.lists(listed_metadata(), max_size=30))
def test_they_are_what_the_codec_builds(listed: list[LedgerMetadata]) -> None:
    templates = MetadataTemplates()
    assert [templates.metadata_of(to_format(each)) for each in listed] == [
        from_format(to_format(each)) for each in listed
    ]


def test_a_template_hands_every_field_on() -> None:
    closed = TEMPLATE.close(9, 1000)
    other = closed.with_numbers(3, 30, 5, 7)
    assert other == replace(closed, last_entry_id=3, length=30, ctime_ms=5, creator_token=7)
    assert hash(other.fragments) == hash(closed.fragments)
    assert all(hasattr(other, each.name) for each in fields(LedgerMetadata))


@given(listed_metadata())
def test_numbers_and_template_are_the_ledger(metadata: LedgerMetadata) -> None:
    message = to_format(metadata)
    numbers = take_numbers(message)
    assert numbers is not None
    template = from_format(message)
    assert (template.last_entry_id, template.length) == ((0, 0) if metadata.is_closed else (-1, 0))
    assert template.creator_token == 0
    assert ledger_of(template, *numbers) == metadata


def test_an_unbounded_ledger_keeps_its_end_in_its_template() -> None:
    metadata = replace(UNBOUNDED, ctime_ms=5, creator_token=7)
    message = to_format(metadata)
    numbers = take_numbers(message)
    assert numbers == (-1, 0, 5, 7)
    assert ledger_of(from_format(message), *numbers) == metadata


def test_equal_parts_are_one_object() -> None:
    templates = MetadataTemplates()
    first, second = (templates.metadata_of(to_format(TEMPLATE.close(end, 10))) for end in (1, 2))
    assert first.fragments is second.fragments
    assert first.custom_metadata is second.custom_metadata


def _without_end(message: LedgerMetadataFormat) -> None:
    message.ClearField("lastEntryId")


def _without_length(message: LedgerMetadataFormat) -> None:
    message.ClearField("length")


def _before_the_first(message: LedgerMetadataFormat) -> None:
    message.lastEntryId = -2


def _negative(message: LedgerMetadataFormat) -> None:
    message.length = -1


def _without_digest(message: LedgerMetadataFormat) -> None:
    message.ClearField("digestType")


def _without_ensemble(message: LedgerMetadataFormat) -> None:
    message.ClearField("segment")


@pytest.mark.parametrize(
    "damage", [_without_end, _without_length, _before_the_first, _negative, _without_digest, _without_ensemble]
)
def test_damaged_metadata_are_told_of_as_the_codec_tells(damage: object) -> None:
    assert callable(damage)
    message = to_format(TEMPLATE.close(9, 1000))
    damage(message)
    with pytest.raises(MetadataFormatException) as of_codec:
        from_format(message)
    templates = MetadataTemplates()
    templates.metadata_of(to_format(TEMPLATE.close(9, 1000)))
    with pytest.raises(MetadataFormatException) as told:
        templates.metadata_of(message)
    assert str(told.value) == str(of_codec.value)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_templates, "_KEPT", 10)
    built = list[LedgerMetadataFormat]()

    def counted(message: LedgerMetadataFormat) -> LedgerMetadata:
        built.append(message)
        return from_format(message)

    monkeypatch.setattr(metadata_templates, "from_format", counted)
    templates = MetadataTemplates()
    for value in range(100):
        templates.metadata_of(to_format(replace(TEMPLATE, custom_metadata={"n": b"%d" % value}).close(1, 1)))
    assert len(built) == 100
    large = replace(TEMPLATE, custom_metadata={"n": b"x" * 4096}).close(1, 1)
    for _ in range(3):
        assert templates.metadata_of(to_format(large)) == large
    assert len(built) == 103, "large metadata are not kept"
    assert templates.metadata_of(to_format(replace(TEMPLATE, custom_metadata={"n": b"99"}).close(7, 7))).length == 7
    assert len(built) == 103, "the latest are"
