"""Proof that a bookie has lost data that it acknowledged: the error of a start, and what the operator may decide.

A bookie that went on regardless would answer "no such entry" for what it lost, and a recovery would believe it and end
the ledger there, although other bookies have the rest (S8). Such a start is therefore refused; an operator without a
better copy accepts the loss, which puts every ledger in limbo (`limbo`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bookgate.bookie.system.files import StorageCorruptException
from bookgate.runtime.logs import log_event

_log = logging.getLogger(__name__)

ACCEPT_LOSS = "--accept-loss"

WAYS_OUT = (
    "Restore the file; or give this bookie up and let its ledgers be replicated from the others; "
    f"or start it once with {ACCEPT_LOSS}: what it lacks is then unknown to it, not absent"
)


class LostDataException(StorageCorruptException):
    """The message says what was found, and the ways out."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: data that this bookie acknowledged are lost here. {WAYS_OUT}.")


OnLoss = Callable[[LostDataException], None]
"""What becomes of a start that finds proof of a loss: it raises, or the start goes on with what is there."""


def refuse_loss(error: LostDataException) -> None:
    """The start ends."""
    raise error


def print_loss(error: LostDataException) -> None:
    """Whoever started it has accepted the loss."""
    log_event(_log, "data_lost", logging.ERROR, error=error)
