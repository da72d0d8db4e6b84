"""The registration of a bookie: its id, its endpoints, and its properties.

Source: docs/protocol/metadata.md#registration. A registration without content is the legacy form: the bookie id is
`host:port`, and that address is the only endpoint (entry protocol). A gateway hosted by a bookie is registered as a
further endpoint, so a client that knows one gateway can discover all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from google.protobuf.message import DecodeError

from bookgate.ledger.addresses import address_of
from bookgate.ledger.errors import IncorrectParameterException, MetadataFormatException
from bookgate.protos.bookkeeper.proto.data_formats_pb2 import BookieServiceInfoFormat

BOOKIE_RPC = "bookie-rpc"
"""Protocol name of the endpoint that serves the entry protocol."""

GATEWAY_GRPC = "bookgate-grpc"
"""Protocol name of the endpoint of a metadata gateway."""

HTTP = "http"

TLS_EXTENSION = "tls"
"""Extension of an endpoint that supports TLS. The entry port then serves both TLS and clear text; an HTTP port serves
TLS only.
"""

LEASE_PROPERTY = "bookgate.lease"
"""Property of a registration that a gateway maintains for a bookie: `sha256:<digest of the lease id>/<epoch>`."""

PRINCIPAL_PROPERTY = "bookgate.principal"
"""Property of such a registration that names the principal who made it, where the gateway knows one."""

VERSION_PROPERTY = "bookgate.version"
"""Property that holds the software version of the bookie."""

HOST_PROPERTY = "host"
"""Property that names the machine a bookie runs on, where the host of its entry protocol does not."""

FEATURES_PROPERTY = "features"
"""Property that lists what the bookie understands beyond BookKeeper's releases: words, separated by commas."""
LEDGER_SCOPE = "ledger-scope"
"""The feature of a bookie that understands ledgers with a scope (docs/protocol/scoped-ledgers.md#on-the-wire)."""
LEDGER_TERM = "ledger-term"
"""The feature of a bookie that honours terms (docs/protocol/unbounded-ledgers.md#on-the-wire)."""

Features = frozenset[str]
NO_FEATURES: Features = frozenset()
_MEANINGS = {LEDGER_SCOPE: "ledgers with a scope", LEDGER_TERM: "unbounded ledgers"}

MOST_ID_CHARACTERS = 259
"""Of a bookie id: as many as the longest host name (253) and a port have."""

_BOOKIE_ID = re.compile(rf"[A-Za-z0-9:._-]{{1,{MOST_ID_CHARACTERS}}}")
_STORED_BOOKIE_ID = re.compile(r"[A-Za-z0-9:._;<=>?@\[\\\]^-]{1,4096}")
"""BookKeeper's own pattern, and a length that no node's name has."""
_RESERVED = "readonly"
_HASHED = "sha256:"
"""Prefix of a stored lease id digest. It is unambiguous because a lease id contains no colon."""


def features_for(*, scoped: bool, unbounded: bool) -> Features:
    """What a bookie has to understand to hold such a ledger."""
    needed = {LEDGER_SCOPE: scoped, LEDGER_TERM: unbounded}
    return frozenset(feature for feature, is_needed in needed.items() if is_needed)


def meaning_of(features: Features) -> str:
    """What bookies without the features do not understand, for a message."""
    return " and ".join(_MEANINGS[feature] for feature in sorted(features))


def is_bookie_id(bookie_id: str) -> bool:
    """Whether a bookie can have this id: BookKeeper accepts it, and it is not longer than any address."""
    return _BOOKIE_ID.fullmatch(bookie_id) is not None and bookie_id.lower() != _RESERVED


def check_bookie_id(bookie_id: str) -> str:
    """Returns the id unchanged. Raises IncorrectParameterException for an id that no bookie can have.

    Every call that takes a bookie id checks it by this rule or the next: the id becomes a node's name in the store.
    """
    if not is_bookie_id(bookie_id):
        raise IncorrectParameterException(fault_of_bookie_id(bookie_id))
    return bookie_id


def check_stored_bookie_id(bookie_id: str) -> str:
    """The same for a call that reads or removes what a bookie has stored, perhaps one of Apache BookKeeper's with an id
    that is refused to new ones.
    """
    if not _STORED_BOOKIE_ID.fullmatch(bookie_id) or bookie_id.lower() == _RESERVED:
        raise IncorrectParameterException(fault_of_bookie_id(bookie_id))
    return bookie_id


def fault_of_bookie_id(bookie_id: str) -> str:
    """What is wrong with an id that no bookie can have."""
    if len(bookie_id) > MOST_ID_CHARACTERS:
        return _too_long(bookie_id, "a bookie id")
    return f"bookie id {bookie_id!r} is not valid: letters, digits and : - _ . only, and not 'readonly'"


def check_length(name: str, what: str) -> str:
    """Returns the name unchanged. Raises IncorrectParameterException if it is longer than a bookie id may be."""
    if len(name) > MOST_ID_CHARACTERS:
        raise IncorrectParameterException(_too_long(name, what))
    return name


def _too_long(name: str, what: str) -> str:
    return f"{what} has {len(name)} characters, more than the {MOST_ID_CHARACTERS} that it may have"


@dataclass(frozen=True, slots=True)
class Lease:
    """The incarnation (lifetime) of a bookie that owns a registration, and the epoch of the stream that made it.

    A bookie that registers through gateways moves between them. The registration of a stream may replace one made by an
    earlier stream of the same lease, through whichever gateway it was made, but never one that belongs to another
    lease. Anyone who knows the lease id can act as that bookie, so only its digest is kept, stored and logged.
    """

    digest: str
    epoch: int

    @classmethod
    def of(cls, lease_id: str, epoch: int) -> Lease:
        return cls(hashlib.sha256(lease_id.encode()).hexdigest(), epoch)

    @classmethod
    def from_property(cls, value: str) -> Lease | None:
        """Parses the stored property. Also accepts the plain lease id, which earlier gateways stored."""
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
    """Whether two registrations of a bookie id have one owner: the same lease, or (both None) this process itself."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address on which a bookie serves one protocol."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """`host:port`; an IPv6 host is enclosed in brackets."""
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Id, endpoints and properties of a bookie."""

    bookie_id: str
    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def understands(self, feature: str) -> bool:
        """Whether the bookie says that it has a feature."""
        return feature in {word.strip() for word in self.properties.get(FEATURES_PROPERTY, "").split(",")}

    def endpoint(self, protocol: str) -> Endpoint | None:
        """The first endpoint of a protocol, or None."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)

    @property
    def lease(self) -> Lease | None:
        """The lease under which a gateway maintains this registration; None for a bookie that registers itself."""
        return Lease.from_property(self.properties.get(LEASE_PROPERTY, ""))

    def with_lease(self, lease: Lease) -> BookieServiceInfo:
        return replace(self, properties={**self.properties, LEASE_PROPERTY: lease.as_property})

    @property
    def principal(self) -> str | None:
        """Who registered through a gateway, as it knew him."""
        return self.properties.get(PRINCIPAL_PROPERTY)

    def with_principal(self, principal: str | None) -> BookieServiceInfo:
        """The registration with this principal, whatever it said itself."""
        properties = {key: value for key, value in self.properties.items() if key != PRINCIPAL_PROPERTY}
        return replace(
            self, properties=properties if principal is None else {**properties, PRINCIPAL_PROPERTY: principal}
        )

    def without_lease(self) -> BookieServiceInfo:
        """The registration as sent to clients. The lease concerns only bookie and gateways, and changes when the bookie
        moves; so does whose it is.
        """
        if LEASE_PROPERTY not in self.properties:
            return self
        hidden = (LEASE_PROPERTY, PRINCIPAL_PROPERTY)
        return replace(self, properties={k: v for k, v in self.properties.items() if k not in hidden})

    def may_replace(self, stored: bytes) -> bool:
        """Whether `stored`, a registration made by another process, is an earlier one of the same lease and principal.

        A gateway without security knows no principal; where one of the two has none, the lease alone counts.
        """
        if self.lease is None or not self.lease.may_replace(lease_of(stored)):
            return False
        before = principal_of(stored)
        return before is None or self.principal is None or before == self.principal

    def superseded_by(self, stored: bytes) -> bool:
        """Whether `stored` is a later registration of the same lease: the bookie has since moved to another gateway."""
        lease, later = self.lease, lease_of(stored)
        return lease is not None and later is not None and later.may_replace(lease) and later != lease

    def encode(self) -> bytes:
        """Serialises the registration (`BookieServiceInfoFormat`)."""
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
        """Parses the content of a registration. Raises MetadataFormatException."""
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
        # Protobuf returns text that is not UTF-8 as bytes in some places; such text could not be sent in a response.
        if not all(isinstance(text, str) for text in (*texts, *properties, *properties.values())):
            raise MetadataFormatException(f"registration of bookie {bookie_id} can't be read: text that is not UTF-8")
        return cls(bookie_id, endpoints, properties)

    @classmethod
    def announced(cls, bookie_id: str, content: bytes) -> BookieServiceInfo:
        """The registration as service discovery reports it.

        Content that can't be parsed is treated as absent: the bookie id may still be an address.
        """
        try:
            return cls.decode(bookie_id, content).without_lease()
        except MetadataFormatException:
            return cls.legacy(bookie_id)

    @classmethod
    def legacy(cls, bookie_id: str) -> BookieServiceInfo:
        """The registration of a bookie known only by its `host:port` id. An id that is not an address yields no
        endpoints.
        """
        host, separator, port = bookie_id.rpartition(":")
        if not separator or not host or not port.isdigit():
            return cls(bookie_id)
        return cls(bookie_id, (Endpoint(bookie_id, host.strip("[]"), int(port), BOOKIE_RPC),))


def lease_of(stored: bytes) -> Lease | None:
    """The lease in the content of a registration; None if there is none or the content can't be parsed."""
    try:
        return BookieServiceInfo.decode("", stored).lease
    except MetadataFormatException:
        return None


def principal_of(stored: bytes) -> str | None:
    """The principal in the content of a registration."""
    try:
        return BookieServiceInfo.decode("", stored).principal
    except MetadataFormatException:
        return None


def version_of(info: BookieServiceInfo) -> str | None:
    """The version that the bookie reports, such as `bookgate/1.2.3`; None if it reports none (Apache BookKeeper does
    not).
    """
    return info.properties.get(VERSION_PROPERTY)
