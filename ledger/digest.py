"""Ledger keys and entry digests.

The master key authorises access at the bookie; the digest protects an entry end to end. Both derive from the ledger's
password, and the key does not depend on the digest type. A digest covers header and payload as one byte string. Source:
docs/protocol/entry-format.md#digests.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from abc import ABC, abstractmethod
from typing import ClassVar

import google_crc32c

from bookgate.ledger.metadata import DigestType


def ledger_master_key(password: bytes) -> bytes:
    """The 20-byte key that every add, fencing read and explicit LAC write carries."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    """The 20-byte key of the HMAC digest."""
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


class Digest(ABC):
    """The digest function of one ledger. `length` is the size of the digest in an entry packet, in bytes."""

    length: ClassVar[int]
    number: ClassVar[int]
    """The digest type's number in the metadata and in entries of format V2."""

    @abstractmethod
    def compute(self, header: bytes, payload: bytes = b"") -> bytes:
        """The digest of `header || payload`, `length` bytes."""


class Crc32Digest(Digest):
    """CRC-32 (IEEE 802.3), zero-extended to eight bytes."""

    length = 8
    number = DigestType.CRC32

    def compute(self, header: bytes, payload: bytes = b"") -> bytes:
        return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")


class HmacDigest(Digest):
    """HMAC-SHA1, called MAC in BookKeeper's API."""

    length = 20
    number = DigestType.HMAC

    def __init__(self, password: bytes) -> None:
        self._keyed = hmac.new(mac_key(password), digestmod="sha1")

    def compute(self, header: bytes, payload: bytes = b"") -> bytes:
        mac = self._keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()


class Crc32cDigest(Digest):
    """CRC-32C (Castagnoli), four bytes."""

    length = 4
    number = DigestType.CRC32C

    def compute(self, header: bytes, payload: bytes = b"") -> bytes:
        crc: int = google_crc32c.extend(google_crc32c.value(header), payload)
        return crc.to_bytes(4, "big")


class DummyDigest(Digest):
    """No digest: only the ids are verified."""

    length = 0
    number = DigestType.DUMMY

    def compute(self, header: bytes, payload: bytes = b"") -> bytes:
        return b""


def digest_for(digest_type: DigestType, password: bytes) -> Digest:
    """The digest function for a ledger's digest type and password."""
    match digest_type:
        case DigestType.CRC32:
            return Crc32Digest()
        case DigestType.HMAC:
            return HmacDigest(password)
        case DigestType.CRC32C:
            return Crc32cDigest()
        case DigestType.DUMMY:
            return DummyDigest()
