"""A bookie's mode: whether it accepts adds, from whom, and why not.

The mode has two parts. The lifecycle, `Phase`, with the table `LIFECYCLE`: starting → running → shutting down. And,
independent of it, READ_WRITE or READ_ONLY: a bookie is read-only while its settings force it, while it shuts down,
while an operator holds it read-only (`manual`), or while any `Cause` holds: disks above their threshold, a write that
found no space, or a status restored from the last run. It is writable when none of these is left. The end of a cause
never ends the operator's hold, and the operator's release never ends a cause.

Events in: `restore`, `start`, `shut_down`; `disks_full`, `disks_writable`, `out_of_space`, `space_returned`;
`set_by_operator`. Effect out: the `Change` to carry out, that is to persist and register the new mode, or to stop the
bookie if read-only mode is disabled.

While read-only, high-priority adds (recovery of ledgers) are accepted as long as `takes_high_priority` is true, that is
while there is space for them. It is false after a write that found no space until that write has succeeded, whatever
the disks' usage is. Source: docs/protocol/storage.md#bookie-mode, docs/protocol/storage.md#disk-space.

Not its job: measuring disks (`disks.rules`), the status file, the registration, requests (`admission`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookgate.ledger.transitions import Transitions


class Phase(Enum):
    """The phases of a bookie's process."""

    STARTING = "storage is being opened; no request is served"
    RUNNING = "requests are served"
    SHUTTING_DOWN = "read-only for good"


class PhaseEvent(Enum):
    """The events that change the phase."""

    STARTED = "storage is open"
    STOPPED = "an operator, a signal or a fatal error ends the bookie"


LIFECYCLE = Transitions(
    Phase.STARTING,
    {
        Phase.STARTING: {PhaseEvent.STARTED: Phase.RUNNING, PhaseEvent.STOPPED: Phase.SHUTTING_DOWN},
        Phase.RUNNING: {PhaseEvent.STOPPED: Phase.SHUTTING_DOWN},
        Phase.SHUTTING_DOWN: {PhaseEvent.STOPPED: Phase.SHUTTING_DOWN},
    },
)


class Cause(Enum):
    """Why a bookie is read-only without an operator's request."""

    DISK_USAGE = "disk usage over the threshold"
    OUT_OF_SPACE = "a write found no space"
    RESTORED = "read-only when it last ran"


class Change(Enum):
    """What the caller has to carry out after an event."""

    NONE = auto()
    TO_READ_ONLY = auto()
    TO_READ_WRITE = auto()
    STOP = auto()
    """Stop the bookie: it must be read-only, which the settings do not allow."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """The persisted part of the mode. `updated_ms` is wall-clock time in milliseconds."""

    read_only: bool
    manual: bool
    updated_ms: int


class ModeRefusedException(Exception):
    """An operator asked for a mode that the settings do not allow."""


class BookieMode:
    """One bookie's mode. Owned by the event loop; `read_only` and `takes_high_priority` are read for every add."""

    __slots__ = (
        "_causes",
        "_forced",
        "_read_only_enabled",
        "_room_for_high_priority",
        "manual",
        "phase",
        "read_only",
        "takes_high_priority",
    )

    def __init__(self, *, force_read_only: bool = False, read_only_enabled: bool = True) -> None:
        self._forced = force_read_only
        self._read_only_enabled = read_only_enabled
        self._causes: set[Cause] = set()
        self._room_for_high_priority = True
        self.manual = False
        self.phase = LIFECYCLE.initial
        self.read_only = force_read_only
        """Normal adds and explicit LACs are rejected."""
        self.takes_high_priority = True
        """High-priority adds are accepted, also while read-only."""

    @property
    def running(self) -> bool:
        return self.phase is Phase.RUNNING

    @property
    def shutting_down(self) -> bool:
        return self.phase is Phase.SHUTTING_DOWN

    @property
    def causes(self) -> frozenset[Cause]:
        return frozenset(self._causes)

    @property
    def is_out_of_space(self) -> bool:
        """Whether a write found no space and has not succeeded since."""
        return Cause.OUT_OF_SPACE in self._causes

    def describe(self) -> str:
        """The reason for being read-only, for people."""
        reasons = sorted(cause.value for cause in self._causes)
        if self.manual:
            reasons.insert(0, "set by an operator")
        if self.shutting_down:
            reasons.insert(0, "it shuts down")
        elif self._forced:
            reasons.insert(0, "forced by its settings")
        return "; ".join(reasons)

    def restore(self, status: BookieStatus) -> None:
        """Restores the mode of the last run, before `start`. Forced read-only overrides it."""
        if self._forced or not status.read_only or not self._read_only_enabled:
            return
        self.manual = status.manual
        if not status.manual:
            self._causes.add(Cause.RESTORED)
        self.read_only = True

    def start(self) -> None:
        """Storage is open, and requests are served from now on."""
        self.phase = LIFECYCLE.after(self.phase, PhaseEvent.STARTED)

    def shut_down(self) -> None:
        """Read-only from now on; no `Change` results, because the registration is removed."""
        self.phase = LIFECYCLE.after(self.phase, PhaseEvent.STOPPED)
        self.read_only = True

    # --- causes ---

    def disks_full(self, *, high_priority: bool) -> Change:
        """Disk usage demands read-only mode; `high_priority`: there is space left for recovery."""
        self._room_for_high_priority = high_priority
        self._causes.discard(Cause.RESTORED)
        return self._begin(Cause.DISK_USAGE)

    def disks_writable(self) -> Change:
        """Disk usage allows writing. Also ends a restored read-only status."""
        self._room_for_high_priority = True
        self._causes -= {Cause.DISK_USAGE, Cause.RESTORED}
        return self._settle()

    def out_of_space(self) -> Change:
        """A write of the journal, an entry log or the index found no space."""
        return self._begin(Cause.OUT_OF_SPACE)

    def space_returned(self) -> Change:
        """The write that found no space has succeeded."""
        self._causes.discard(Cause.OUT_OF_SPACE)
        return self._settle()

    def _begin(self, cause: Cause) -> Change:
        if not self._read_only_enabled and not self.shutting_down:
            return Change.STOP
        self._causes.add(cause)
        return self._settle()

    # --- the operator ---

    def set_by_operator(self, read_only: bool) -> Change:
        """Sets or releases the operator's hold. Raises ModeRefusedException."""
        if self._forced:
            raise ModeRefusedException("this bookie is forced to be read-only by its settings (force_read_only)")
        if read_only and not self._read_only_enabled:
            raise ModeRefusedException("read-only mode is disabled by the settings (read_only_mode_enabled)")
        self.manual = read_only
        return self._settle()

    def _settle(self) -> Change:
        """Recomputes `read_only` from phase, hold and causes."""
        self.takes_high_priority = self._room_for_high_priority and Cause.OUT_OF_SPACE not in self._causes
        read_only = self._forced or self.shutting_down or self.manual or bool(self._causes)
        if read_only is self.read_only:
            return Change.NONE
        self.read_only = read_only
        return Change.TO_READ_ONLY if read_only else Change.TO_READ_WRITE
