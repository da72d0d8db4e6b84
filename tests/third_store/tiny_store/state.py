"""The state of a cluster in one JSON file. It changes whole: under a lock over processes, by a new file in its place.

An owner is a factory. It holds a lock on a file of its own while it lives, so that whoever sees that lock taken knows
that its registrations count. Not its job: durability over a crash of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bookgate.ledger.errors import MetaStoreException

State = dict[str, Any]
"""`instance_id`, `password`, `revision`, `next_id`, and by their keys `ledgers`, `cookies`, `bookies`."""


class StateFile:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "state.json"

    def read(self) -> State:
        """Raises MetaStoreException where there is no cluster."""
        try:
            state: State = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            raise MetaStoreException(
                f"there is no cluster in {self.directory}; make one: bookgate cluster init"
            ) from None
        except (OSError, ValueError) as error:
            raise MetaStoreException(f"{self.path} can't be read: {error}") from error
        return state

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """The state to change in place; nothing is changed where the block raises."""
        with self._locked():
            state = self.read()
            yield state
            self._replace({**state, "revision": state["revision"] + 1})

    def make(self, state: State) -> bool:
        """False where there is a cluster."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self.path.exists():
                return False
            self._replace(state)
        return True

    def mark(self) -> tuple[int, int] | None:
        """Another one after each change."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _replace(self, state: State) -> None:
        new = self.path.with_suffix(".new")
        try:
            new.write_text(json.dumps(state))
            new.replace(self.path)
        except OSError as error:
            raise MetaStoreException(f"{self.path} can't be written: {error}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            raise MetaStoreException(
                f"there is no cluster in {self.directory}; make one: bookgate cluster init"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def living(self, state: State) -> frozenset[str]:
        """The owners of registrations that live."""
        return frozenset(owner for owner in {row["owner"] for row in state["bookies"].values()} if self._lives(owner))

    def _lives(self, owner: str) -> bool:
        try:
            descriptor = os.open(self.directory / owner, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


class Owner:
    """A sign of life, from `begin` to `end` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        self.name = f"owner-{uuid.uuid4()}"
        self._path = directory / self.name
        self._descriptor: int | None = None

    def begin(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def end(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._path.unlink(missing_ok=True)
