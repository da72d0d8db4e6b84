"""Ledger metadata as an immutable value, and the only code that changes it.

The state moves OPEN → CLOSED (by the writer) or OPEN → IN_RECOVERY → CLOSED; closing is final (P6). Fragments begin at
strictly increasing entry ids, the first at 0, and no bookie appears twice in an ensemble (P5). Each legal transition is
a method that returns a new value; the store's version check decides which value is written. Source:
docs/protocol/metadata.md#serialization, docs/protocol/metadata.md#ledger-states.

Not its job: serialising metadata (`metadata_codec`); deciding who may make a transition and when (the client's protocol
logic); the transitions of unbounded ledgers (`unbounded`), which these methods refuse.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bookgate.ledger.errors import IncorrectParameterException, UnauthorizedAccessException
from bookgate.ledger.ledger_id import NO_ENTRY
from bookgate.ledger.password_check import PasswordCheck
from bookgate.ledger.terms import Terms


class DigestType(enum.IntEnum):
    """Digest of the entries, numbered as in the metadata format. BookKeeper's API calls HMAC `MAC`."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class LedgerState(enum.IntEnum):
    """State of a ledger, numbered as in the metadata format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


_CLOSED = LedgerState.CLOSED
"""Every read compares with it, and a module name is looked up faster than an enum member."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries stored on one ensemble, from `first_entry_id` up to the next fragment or the end of the
    ledger.
    """

    first_entry_id: int
    ensemble: tuple[str, ...]
    """Bookie ids in index order."""


CURRENT_FORMAT_VERSION = 3

OWNER_KEY = "bookgate.owner"
"""Key of the custom metadata that names the principal who created the ledger (docs/protocol/security.md#owners)."""

GUARANTEED_KEY = "bookgate.guaranteed.write.quorum"
"""Key of the custom metadata, with any value, of a ledger whose entries all reach their whole write set
(docs/protocol/client-protocol.md#guaranteed-write-quorum).
"""


@dataclass(frozen=True)  # Without slots, for `with_numbers`.
class LedgerMetadata:
    """All metadata of one ledger. Raises IncorrectParameterException for a value that violates a rule.

    `last_entry_id` and `length` (payload bytes) are -1 and 0 unless CLOSED. `password` is None for ledgers of format
    version 1, which stores none, and for the oldest ledgers of version 2; `digest_type` is None then too. `ctime_ms` is
    None if the store's own creation time applies. `format_version` is the serialisation version, which a ledger keeps
    for its lifetime.
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)
    ctime_ms: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    creator_token: int = 0
    format_version: int = CURRENT_FORMAT_VERSION
    password_check: PasswordCheck | None = field(default=None, repr=False, compare=False)
    """The password was withheld by a gateway, and this is known of it; `password` is empty then."""
    terms: Terms | None = None
    """Of an unbounded ledger; None for every other (`unbounded`)."""

    def __post_init__(self) -> None:
        problem = self._broken_rule()
        if problem:
            raise IncorrectParameterException(f"not valid ledger metadata: {problem}")

    def _broken_rule(self) -> str | None:
        quorums = (self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        if not self.ensemble_size >= self.write_quorum_size >= self.ack_quorum_size >= 1:
            return f"ensemble size, write quorum, ack quorum are {quorums}; each must be at least the next, the last 1"
        if not self.fragments:
            return "there is no ensemble"
        if (self.password is None) != (self.digest_type is None):
            return "password and digest type must both be there or both be absent"
        if self.state is not LedgerState.CLOSED and (self.last_entry_id != NO_ENTRY or self.length != 0):
            return f"state {self.state.name} does not go with a last entry ({self.last_entry_id}) or length"
        if self.last_entry_id < NO_ENTRY or self.length < 0:
            return f"last entry {self.last_entry_id} or length {self.length} is out of range"
        return self._broken_fragment_rule()

    def _broken_fragment_rule(self) -> str | None:
        previous = -1
        for fragment in self.fragments:
            if fragment.first_entry_id <= previous:
                return f"fragment at entry {fragment.first_entry_id} does not come after entry {previous}"
            if len(fragment.ensemble) != self.ensemble_size:
                return f"ensemble at entry {fragment.first_entry_id} has not {self.ensemble_size} members"
            previous = fragment.first_entry_id
        return None

    @classmethod
    def new(
        cls,
        ensemble: Sequence[str],
        write_quorum_size: int,
        ack_quorum_size: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        ctime_ms: int | None = None,
    ) -> LedgerMetadata:
        """The metadata of a ledger to be created, with its first ensemble."""
        if len(set(ensemble)) != len(ensemble):
            raise IncorrectParameterException(f"a bookie stands twice in the ensemble {list(ensemble)}")
        return cls(
            ensemble_size=len(ensemble),
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            fragments=(Fragment(0, tuple(ensemble)),),
            digest_type=digest_type,
            password=password,
            custom_metadata=dict(custom_metadata or {}),
            ctime_ms=ctime_ms,
        )

    def with_password(self, password: bytes) -> LedgerMetadata:
        """The same with a password that was withheld filled in. Raises UnauthorizedAccessException for a wrong one."""
        check = self.password_check
        matches = self.password in (None, password) if check is None else check.matches(password)
        if not matches:
            raise UnauthorizedAccessException("the password is not the one given")
        return self if check is None else replace(self, password=password, password_check=None)

    def known_password(self) -> bytes | None:
        """The stored password. Raises UnauthorizedAccessException where it was withheld."""
        if self.password_check is not None:
            raise UnauthorizedAccessException("the gateway withholds the password: it needs the action ledger.secret")
        return self.password

    @property
    def is_unbounded(self) -> bool:
        return self.terms is not None

    @property
    def guaranteed_write_quorum(self) -> bool:
        """Whether an ordinary ledger is closed only once each entry is on its whole write set."""
        return GUARANTEED_KEY in self.custom_metadata

    @property
    def is_closed(self) -> bool:
        return self.state is _CLOSED

    @property
    def bookies(self) -> set[str]:
        """All bookies that any ensemble names."""
        return {bookie_id for fragment in self.fragments for bookie_id in fragment.ensemble}

    def names(self, bookie_id: str) -> bool:
        """Whether any ensemble names this bookie."""
        return any(bookie_id in fragment.ensemble for fragment in self.fragments)

    @property
    def last_fragment(self) -> Fragment:
        return self.fragments[-1]

    @property
    def complete_fragments(self) -> tuple[Fragment, ...]:
        """Those that nobody extends any more, in order: of a ledger that is not closed all but the last."""
        return self.fragments if self.is_closed else self.fragments[:-1]

    def fragment_at(self, entry_id: int) -> Fragment:
        """The fragment that contains `entry_id`, which may lie beyond the last entry.

        Raises IncorrectParameterException before the first fragment, which begins at 0 but in ledgers of others.
        """
        if entry_id >= self.fragments[-1].first_entry_id >= 0:
            return self.fragments[-1]
        index = bisect_right(self.fragments, entry_id, key=lambda fragment: fragment.first_entry_id)
        if index == 0:
            raise IncorrectParameterException(f"entry {entry_id} lies before the first fragment")
        return self.fragments[index - 1]

    def begin_recovery(self) -> LedgerMetadata:
        """The transition OPEN → IN_RECOVERY."""
        self._require_bounded()
        self._require(LedgerState.OPEN)
        return replace(self, state=LedgerState.IN_RECOVERY, creator_token=0)

    def close(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """The transition OPEN or IN_RECOVERY → CLOSED, with the final last entry id and the length in payload bytes."""
        self._require_bounded()
        self._require(LedgerState.OPEN, LedgerState.IN_RECOVERY)
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length, creator_token=0)

    def with_numbers(self, last_entry_id: int, length: int, ctime_ms: int | None, creator_token: int) -> LedgerMetadata:
        """The same for another ledger, which differs only in these numbers; the caller has checked that they fit.

        A listing calls this for each ledger. It checks no rule again: a twentieth of the time of `replace`.
        """
        other = object.__new__(LedgerMetadata)
        vars(other).update(
            vars(self), last_entry_id=last_entry_id, length=length, ctime_ms=ctime_ms, creator_token=creator_token
        )
        return other

    def with_ensemble(self, first_entry_id: int, ensemble: Sequence[str]) -> LedgerMetadata:
        """Replaces the last ensemble if it begins at `first_entry_id`; otherwise appends a fragment that begins
        there.
        """
        self._require_bounded()
        self._require(LedgerState.OPEN, LedgerState.IN_RECOVERY)
        kept = self.fragments
        if kept[-1].first_entry_id == first_entry_id:
            kept = kept[:-1]
        return replace(self, fragments=(*kept, Fragment(first_entry_id, tuple(ensemble))), creator_token=0)

    def _require(self, *states: LedgerState) -> None:
        if self.state not in states:
            raise IncorrectParameterException(
                f"a ledger that is {self.state.name} can't change so; it must be "
                + " or ".join(state.name for state in states)
            )

    def _require_bounded(self) -> None:
        if self.terms is not None:
            raise IncorrectParameterException(
                "the ledger is unbounded: it is not recovered, changed or closed as others are, but by whoever takes "
                "it over"
            )
