"""What a new ledger is to be like: one definition of the options, their defaults, their rules, and how calls take them.

Not its job: rules that depend on the client or the cluster (`creation`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from uuid import UUID

from bookgate.ledger.errors import IncorrectParameterException
from bookgate.ledger.ledger_id import LedgerId
from bookgate.ledger.metadata import DigestType
from bookgate.thinclient.handles.context import ledger_id_of

Owner = TypeVar("Owner")
Created = TypeVar("Created")
Given = ParamSpec("Given")
AnyOwner = TypeVar("AnyOwner", contravariant=True)
AnyCreated = TypeVar("AnyCreated", covariant=True)

_WRITE_QUORUM, _ACK_QUORUM = 3, 2
_FOLLOWS = cast(int, None)
"""The default of a quorum, which a smaller ensemble makes smaller; no instance keeps it."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """What a ledger is created with. It holds for the ledger's life, except that bookies of an ensemble are replaced.

    Ensemble size ≥ write quorum ≥ ack quorum ≥ 1. A ledger outlives the loss of ack quorum − 1 bookies without losing
    an acknowledged entry.

    Args:
        ensemble_size: How many bookies the ledger's entries are spread over.
        write_quorum_size: How many of those bookies each entry is sent to. Smaller than the ensemble, entries are
            striped: entry 0 on the bookies 0, 1, …, entry 1 on the bookies 1, 2, …. By default 3, or all bookies of a
            smaller ensemble.
        ack_quorum_size: How many of an entry's bookies must have stored it before the append returns. By default 2, or
            1 where the write quorum is 1.
        digest_type: The checksum that each entry carries and each reader checks. CRC32C and CRC32 find damage; HMAC,
            with the password as its key, also finds entries that somebody without it has made; DUMMY finds nothing.
        password: Who opens the ledger must give the same one. `b""` is legal, and the default: a ledger without
            protection. The metadata store keeps it in clear, so it guards against mistakes, not against attackers.
        custom_metadata: Names and values of the application, kept in the ledger's metadata and told by listings.
        ledger_id: The id that the ledger is to have: in scope 0 a number, else a `LedgerId` or a `UUID`, or a number
            with `scope_id`. None lets the cluster give one.
        deferred_sync: Appends are acknowledged before they are durable. `WriteHandle.force` makes them so, and only
            then do they count.
        scope_id: The scope of the ledger. In one other than 0 without `ledger_id` the client takes a random id.
        uuid_version: 4 or 7: the id is a new UUID of that version, which the client makes; no generator is asked.

    Raises:
        IncorrectParameterException: The sizes don't fit each other, or a value is of the wrong kind.
    """

    ensemble_size: int = 3
    write_quorum_size: int = field(default=_FOLLOWS)
    ack_quorum_size: int = field(default=_FOLLOWS)
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)
    custom_metadata: Mapping[str, bytes] | None = field(default=None, hash=False)
    ledger_id: int | LedgerId | UUID | None = None
    deferred_sync: bool = field(default=False, kw_only=True)
    scope_id: int = field(default=0, kw_only=True)
    uuid_version: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.write_quorum_size is _FOLLOWS:
            object.__setattr__(self, "write_quorum_size", min(_WRITE_QUORUM, self.ensemble_size))
        if self.ack_quorum_size is _FOLLOWS:
            object.__setattr__(self, "ack_quorum_size", min(_ACK_QUORUM, self.write_quorum_size))
        if not self.ensemble_size >= self.write_quorum_size >= self.ack_quorum_size >= 1:
            raise IncorrectParameterException(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum_size} and ack quorum "
                f"{self.ack_quorum_size} don't fit: each must be at least the next, and the last at least 1"
            )
        if not isinstance(self.digest_type, DigestType):
            raise IncorrectParameterException(f"digest_type is a DigestType, not {self.digest_type!r}")
        if not isinstance(self.password, bytes):
            raise IncorrectParameterException("password is bytes: encode it, or leave it out for none")
        for key, value in (self.custom_metadata or {}).items():
            if not isinstance(key, str) or not isinstance(value, bytes):
                raise IncorrectParameterException(
                    f"custom_metadata has names that are text and values that are bytes, not {key!r}: {value!r}"
                )
        if self.ledger_id is not None:
            ledger_id_of(self.ledger_id, self.scope_id)
        elif not -(1 << 63) <= self.scope_id < 1 << 63:
            raise IncorrectParameterException(f"scope id {self.scope_id} does not fit 64 bits")
        if self.uuid_version is not None:
            if self.uuid_version not in (4, 7):
                raise IncorrectParameterException(f"uuid_version is 4 (random) or 7 (by time), not {self.uuid_version}")
            if self.ledger_id is not None or self.scope_id:
                raise IncorrectParameterException("uuid_version makes the whole id; leave ledger_id and scope_id out")

    def _check_kinds(self) -> None:
        for name in ("ensemble_size", "write_quorum_size", "ack_quorum_size"):
            value = getattr(self, name)
            if value is not _FOLLOWS and (not isinstance(value, int) or isinstance(value, bool)):
                raise IncorrectParameterException(f"{name} is a number of bookies, not {value!r}")

    @property
    def given_id(self) -> LedgerId | None:
        """The id that the ledger is to have, if one was given."""
        return None if self.ledger_id is None else ledger_id_of(self.ledger_id, self.scope_id)

    @property
    def makes_id(self) -> bool:
        """Whether the client makes the id."""
        return self.ledger_id is None and (self.uuid_version is not None or self.scope_id != 0)


def ledger_options(
    ensemble_size: int | None = None,
    write_quorum_size: int | None = None,
    ack_quorum_size: int | None = None,
    digest_type: DigestType | None = None,
    password: bytes | None = None,
    custom_metadata: Mapping[str, bytes] | None = None,
    ledger_id: int | LedgerId | UUID | None = None,
    *,
    deferred_sync: bool | None = None,
    scope_id: int | None = None,
    uuid_version: int | None = None,
    options: LedgerOptions | None = None,
) -> LedgerOptions:
    """`options` (default: those of `LedgerOptions()`) with what else is given in place of its values.

    This is how every call that creates a ledger takes its arguments. Raises IncorrectParameterException.
    """
    given: dict[str, Any] = {
        "ensemble_size": ensemble_size,
        "write_quorum_size": write_quorum_size,
        "ack_quorum_size": ack_quorum_size,
        "digest_type": digest_type,
        "password": password,
        "custom_metadata": custom_metadata,
        "ledger_id": ledger_id,
        "deferred_sync": deferred_sync,
        "scope_id": scope_id,
        "uuid_version": uuid_version,
    }
    named = {name: value for name, value in given.items() if value is not None}
    return LedgerOptions(**named) if options is None else replace(options, **named)


class _Creates(Protocol[AnyOwner, AnyCreated]):
    """A method that creates a ledger of these options."""

    def __call__(self, owner: AnyOwner, /, *, options: LedgerOptions) -> AnyCreated: ...


def _taking(
    gather: Callable[Given, LedgerOptions],
) -> Callable[[_Creates[Owner, Created]], Callable[Concatenate[Owner, Given], Created]]:
    """A decorator: the method is called with the parameters of `gather`, and gets what that makes of them."""

    parameters = signature(gather).parameters.values()

    def decorate(create: _Creates[Owner, Created]) -> Callable[Concatenate[Owner, Given], Created]:
        def call(owner: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Created:
            return create(owner, options=gather(*args, **kwargs))

        async def call_async(owner: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Any:
            return await cast(Awaitable[Any], create(owner, options=gather(*args, **kwargs)))

        taking: Any = wraps(create)(call_async if iscoroutinefunction(create) else call)
        # What `help` and editors show.
        owner = Parameter("self", Parameter.POSITIONAL_ONLY)
        taking.__signature__ = signature(create).replace(parameters=[owner, *parameters])
        return cast(Callable[Concatenate[Owner, Given], Created], taking)

    return decorate


takes_ledger_options = _taking(ledger_options)
"""For methods that create ledgers: they are called with `LedgerOptions`' fields, or `options=`, or both."""
