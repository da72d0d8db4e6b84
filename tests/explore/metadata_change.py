"""One compare-and-set of a client, as `handles.metadata_cas.update` does it: try, and on a conflict decide anew.

Its transform is named and made anew from its arguments, since a function has no state that a snapshot could hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookgate.ledger.metadata import LedgerMetadata
from bookgate.thinclient.core.ensemble_change import change_ensemble
from bookgate.thinclient.core.unbounded.changes import Holder, closing, storing, taken, taking
from bookgate.thinclient.handles.metadata_cas import Transform, begin_recovery, close_by_writer, end_recovery
from tests.explore.letters import Handle, Look, Record, Write
from tests.explore.servers import LEDGER

_TRANSFORMS: dict[str, Callable[..., Transform]] = {
    "take over": taking,
    "open": lambda holder, before, fragments: taken(Holder(*holder), before, fragments),
    "store": lambda holder, new: storing(Holder(*holder), new),
    "close the stream": lambda holder, last, length: closing(Holder(*holder), last, length),
    "begin recovery": lambda: begin_recovery,
    "end recovery": lambda last, length, fragments: end_recovery(last, length, fragments),
    "close": lambda last, length: close_by_writer(LEDGER, last, length),
    "change ensemble": lambda failed, found, first: change_ensemble(LEDGER, dict(failed), dict(found), first),
}


class MetadataChange:
    """A change under way. `done` once `record` shows it, or that there is nothing to do."""

    def __init__(self, store: int, record: tuple[LedgerMetadata, int], name: str, *arguments: Any) -> None:
        self.store, self.record, self.name, self.arguments = store, record, name, arguments
        self.done = False

    @property
    def handle(self) -> Handle:
        return (self.name,)

    def attempt(self) -> Sequence[tuple[int, Handle, object]]:
        """The write to send, if one is needed. Raises what the transform raises."""
        metadata, version = self.record
        changed = _TRANSFORMS[self.name](*self.arguments)(metadata)
        if changed is None:
            self.done = True
            return ()
        return ((self.store, self.handle, Write(changed, version)),)

    def hear(self, answer: object) -> Sequence[tuple[int, Handle, object]]:
        """A record, or an error after which the outcome is unknown. Raises what the transform raises."""
        if not isinstance(answer, Record):
            return ((self.store, self.handle, Look()),)
        self.record = (answer.metadata, answer.version)
        if answer.written:
            self.done = True
            return ()
        return self.attempt()
