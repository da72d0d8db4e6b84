"""What metadata a gateway stores for its clients: bounds far above what clusters have, and bookie ids that can be.

One request must cost neither the store's connection nor the event loop of whoever reads the ledger. Source:
docs/protocol/gateway.md#bounds-of-metadata.

The bounds are for what is new. Other clients of a store know none of them, and a ledger that they have written stays
readable and can be written on: what breaks a bound already may go on breaking it (`require_no_new_faults`).

Not its job: what metadata are valid at all (`metadata`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookgate.ledger.bookie_info import fault_of_bookie_id, is_bookie_id
from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.metadata import LedgerMetadata
from bookgate.ledger.metadata_codec import encode
from bookgate.ledger.protobuf_text import quoted

MOST_BOOKIES = 1024
"""Ensemble size."""

MOST_PLACES = 16 * 1024
"""Ensemble size × write quorum: as many indexes has the table of write sets."""

MOST_TEXT_BYTES = 64 * 1024
"""Encoded bytes in format version 1 or 2. Its text is slower to read than version 3 and larger than the request."""

MOST_WRITTEN_TEXT_BYTES = 2 * MOST_TEXT_BYTES
"""Bytes of the custom metadata that a write may give a ledger in format version 1 or 2."""

_ADDED_BYTES = 512
"""What a gateway adds to the message of a client: the header, a creator token, the owner."""

_MOST_OF_A_CHARACTER = 16
"""Encoded bytes: UTF-8 has up to 4, each of which takes 4 in the text form."""
_MOST_BESIDES = 64
"""Encoded bytes of a field or a fragment besides its text, in any version."""


def faults(metadata: LedgerMetadata, max_bytes: int) -> Mapping[str, str]:
    """A sentence for each bound that the metadata break, by what breaks it: a bound's name, or an invalid bookie id.
    (The names would be valid ids, so they differ from these.)

    `max_bytes` bounds the encoded metadata. Raises MetadataSerializationException if they can't be encoded.
    """
    wrong = sorted(bookie_id for bookie_id in metadata.bookies if not is_bookie_id(bookie_id))
    found = {bookie_id: fault_of_bookie_id(bookie_id) for bookie_id in wrong}
    ensemble_size, write_quorum_size = metadata.ensemble_size, metadata.write_quorum_size
    if ensemble_size > MOST_BOOKIES:
        found["ensemble"] = f"the ensemble size is {ensemble_size}; it may be up to {MOST_BOOKIES}"
    if ensemble_size * write_quorum_size > MOST_PLACES:
        found["write-sets"] = (
            f"ensemble size {ensemble_size} times write quorum {write_quorum_size} may be up to {MOST_PLACES}"
        )
    is_text, most = metadata.format_version < 3, max_bytes + _ADDED_BYTES
    enough = min(most, MOST_TEXT_BYTES) if is_text else most
    size = 0 if _at_most(metadata) <= enough else _encoded_bytes(metadata)
    if is_text and size > MOST_TEXT_BYTES:
        found["text"] = (
            f"the metadata take {size} bytes or more in format version {metadata.format_version}, which may have up to "
            f"{MOST_TEXT_BYTES}; new ledgers with a password have version 3"
        )
    if size > most:
        found["bytes"] = _too_large(size, max_bytes)
    return found


def require_no_faults(metadata: LedgerMetadata, max_bytes: int) -> None:
    """Raises IncorrectParameterException for a ledger that may not be created."""
    for fault in faults(metadata, max_bytes).values():
        raise IncorrectParameterException(fault)


def require_no_new_faults(metadata: LedgerMetadata, stored: LedgerMetadata, max_bytes: int) -> None:
    """Raises IncorrectParameterException if the metadata break a bound that the stored ones keep.

    A change of the state breaks none: what was stored can be recovered and closed. Text grows beyond its bound by
    fragments, but not by custom metadata.
    """
    same_state = replace(metadata, state=stored.state, last_entry_id=stored.last_entry_id, length=stored.length)
    known = {"text", *faults(stored, max_bytes)}
    for broken, fault in faults(same_state, max_bytes).items():
        if broken not in known:
            raise IncorrectParameterException(fault)
    if metadata.format_version >= 3:
        return
    custom, most = _custom_bytes(metadata), max_bytes + _ADDED_BYTES
    if custom > max(MOST_WRITTEN_TEXT_BYTES, _custom_bytes(stored)):
        raise IncorrectParameterException(
            f"the custom metadata take {custom} bytes in format version {metadata.format_version}, in which they may "
            f"have up to {MOST_WRITTEN_TEXT_BYTES}"
        )
    if (size := len(encode(same_state))) > most >= len(encode(stored)):
        raise IncorrectParameterException(_too_large(size, max_bytes))


def _custom_bytes(metadata: LedgerMetadata) -> int:
    """The custom metadata in text form, besides what each entry has around it."""
    return sum(len(quoted(key)) + len(quoted(value)) for key, value in metadata.custom_metadata.items())


def _too_large(size: int, max_bytes: int) -> str:
    return f"the metadata take {size} bytes or more, more than the {max_bytes} that a ledger may have"


def _at_most(metadata: LedgerMetadata) -> int:
    """A bound of the encoded bytes that costs less than encoding."""
    characters, fields = len(metadata.password or b""), 20
    for fragment in metadata.fragments:
        characters += sum(map(len, fragment.ensemble))
        fields += 1 + len(fragment.ensemble)
    for key, value in metadata.custom_metadata.items():
        characters += len(key) + len(value)
        fields += 2
    if metadata.terms is not None:
        fields += 2 * len(metadata.fragments)
    return _MOST_OF_A_CHARACTER * characters + _MOST_BESIDES * fields


def _encoded_bytes(metadata: LedgerMetadata) -> int:
    """The encoded size; text that is too large anyhow is not encoded, which takes long, and less is told."""
    if metadata.format_version < 3:
        least = sum(len(key) + len(value) for key, value in metadata.custom_metadata.items())
        least += sum(len(bookie_id) + 1 for fragment in metadata.fragments for bookie_id in fragment.ensemble)
        if least > MOST_TEXT_BYTES:
            return least
    return len(encode(metadata))
