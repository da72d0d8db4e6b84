"""What a bookie registers of itself: its id, where it listens, and what it can do.

Source: docs/protocol/metadata.md#registration. A registration without content is the legacy form: the id is `host:port`
and the one endpoint is the entry protocol's. The gateway that a bookie hosts is one more endpoint, so that whoever
knows one gateway learns of all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from google.protobuf.message import DecodeError

from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import BookieServiceInfoFormat

BOOKIE_RPC = "bookie-rpc"
"""Protocol of the endpoint that speaks the entry protocol."""

GATEWAY_GRPC = "bookgate-grpc"
"""Protocol of the endpoint of a metadata gateway."""

HTTP = "http"

TLS_EXTENSION = "tls"
"""Extension of an endpoint that speaks TLS: the entry port beside clear, HTTP nothing else."""

LEASE_PROPERTY = "bookgate.lease"
"""Property of a registration that a gateway keeps for a bookie: `sha256:<digest of the lease id>/<epoch>`."""

VERSION_PROPERTY = "bookgate.version"
"""Property with the version of the software that registered."""

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:._-]+")
_HASHED = "sha256:"
"""Begins the digest of a lease id where it is stored: no lease id has a colon."""


def is_bookie_id(bookie_id: str) -> bool:
    """Whether BookKeeper would take the id."""
    return _BOOKIE_ID.fullmatch(bookie_id) is not None and bookie_id.lower() != "readonly"


def check_bookie_id(bookie_id: str) -> str:
    """Returns the id. Raises IncorrectParameterException for one that BookKeeper would not take."""
    if not is_bookie_id(bookie_id):
        raise IncorrectParameterException(
            f"bookie id {bookie_id!r} is not valid: letters, digits and : - _ . only, and not 'readonly'"
        )
    return bookie_id


@dataclass(frozen=True, slots=True)
class Lease:
    """Which life of a bookie a registration belongs to, and which of its streams made it.

    A bookie that registers through gateways moves between them: the registration of a stream may replace that of an
    earlier stream of the same life, whoever made it in the store, and never one of another life. Whoever names the
    lease id is that bookie, so only its digest is kept, stored and logged.
    """

    digest: str
    epoch: int

    @classmethod
    def of(cls, lease_id: str, epoch: int) -> Lease:
        return cls(hashlib.sha256(lease_id.encode()).hexdigest(), epoch)

    @classmethod
    def from_property(cls, value: str) -> Lease | None:
        """As it is stored; also the lease id itself, as gateways stored it once."""
        lease_id, separator, epoch = value.rpartition("/")
        if not separator or not epoch.isdecimal():
            return None
        if lease_id.startswith(_HASHED):
            return cls(lease_id.removeprefix(_HASHED), int(epoch))
        return cls.of(lease_id, int(epoch))

    @property
    def as_property(self) -> str:
        return f"{_HASHED}{self.digest}/{self.epoch}"

    def may_replace(self, stored: Lease | None) -> bool:
        return stored is not None and stored.digest == self.digest and stored.epoch <= self.epoch


def same_life(one: Lease | None, other: Lease | None) -> bool:
    """Whether two registrations of a bookie id have one owner: the same lease, or this process itself (no lease)."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a bookie listens for one protocol."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Id, endpoints and properties of a bookie."""

    bookie_id: str
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def endpoint(self, protocol: str) -> Endpoint | None:
        """The first endpoint of a protocol."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)

    @property
    def lease(self) -> Lease | None:
        """The lease by which a gateway keeps this registration, None for a bookie that registers by itself."""
        return Lease.from_property(self.properties.get(LEASE_PROPERTY, ""))

    def with_lease(self, lease: Lease) -> BookieServiceInfo:
        return replace(self, properties={**self.properties, LEASE_PROPERTY: lease.as_property})

    def without_lease(self) -> BookieServiceInfo:
        """What clients are told: the lease is between bookie and gateways, and changes as the bookie moves."""
        if LEASE_PROPERTY not in self.properties:
            return self
        return replace(self, properties={k: v for k, v in self.properties.items() if k != LEASE_PROPERTY})

    def may_replace(self, stored: bytes) -> bool:
        """True if a registration's content, made by another process, is an earlier one of this life of the bookie."""
        return self.lease is not None and self.lease.may_replace(lease_of(stored))

    def superseded_by(self, stored: bytes) -> bool:
        """True if it is a later one: the bookie has moved to another gateway since."""
        lease, later = self.lease, lease_of(stored)
        return lease is not None and later is not None and later.may_replace(lease) and later != lease

    def encode(self) -> bytes:
        """The content of a registration (`BookieServiceInfoFormat`)."""
        message = BookieServiceInfoFormat(properties=dict(self.properties))
        for endpoint in self.endpoints:
            message.endpoints.add(
                id=endpoint.id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, bookie_id: str, content: bytes) -> BookieServiceInfo:
        """Reads a registration's content. Raises MetadataFormatException."""
        if not content:
            return cls.legacy(bookie_id)
        try:
            message = BookieServiceInfoFormat.FromString(content)
            endpoints = tuple(
                Endpoint(e.id, e.host, e.port, e.protocol, tuple(e.auth), tuple(e.extensions))
                for e in message.endpoints
            )
            properties = dict(message.properties)
        except (DecodeError, UnicodeDecodeError) as error:
            raise MetadataFormatException(f"registration of bookie {bookie_id} can't be read: {error}") from error
        texts = chain.from_iterable((e.id, e.host, e.protocol, *e.auth, *e.extensions) for e in endpoints)
        # Protobuf gives text that is not UTF-8 as bytes in places; no answer could carry it.
        if not all(isinstance(text, str) for text in (*texts, *properties, *properties.values())):
            raise MetadataFormatException(f"registration of bookie {bookie_id} can't be read: text that is not UTF-8")
        return cls(bookie_id, endpoints, properties)

    @classmethod
    def announced(cls, bookie_id: str, content: bytes) -> BookieServiceInfo:
        """What discovery tells of a registration.

        One that can't be read counts as one without content: the id may still be an address.
        """
        try:
            return cls.decode(bookie_id, content).without_lease()
        except MetadataFormatException:
            return cls.legacy(bookie_id)

    @classmethod
    def legacy(cls, bookie_id: str) -> BookieServiceInfo:
        """A bookie known by its `host:port` id only. One whose id is no address has no endpoints."""
        host, separator, port = bookie_id.rpartition(":")
        if not separator or not host or not port.isdigit():
            return cls(bookie_id)
        return cls(bookie_id, (Endpoint(bookie_id, host.strip("[]"), int(port), BOOKIE_RPC),))


def lease_of(stored: bytes) -> Lease | None:
    """The lease in a registration's content; None also where the content can't be read."""
    try:
        return BookieServiceInfo.decode("", stored).lease
    except MetadataFormatException:
        return None


def version_of(info: BookieServiceInfo) -> str | None:
    """What the bookie says that it runs, `bookgate/1.2.3`; None for one that does not say, as Apache BookKeeper's."""
    return info.properties.get(VERSION_PROPERTY)
