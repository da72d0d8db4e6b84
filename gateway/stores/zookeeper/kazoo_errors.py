"""kazoo's errors: which of them concern the connection or the node, and the one that made a transaction fail.

Not its job: the outcome of the call that failed (`session`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)

from bookgate.ledger.errors import ZKException

CONNECTION_ERRORS = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    AuthFailedError,
    RequestTimeoutError,
)

NODE_ERRORS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)


def raise_errors(results: Sequence[Any]) -> None:
    """Raises the first error among the results of a transaction: a node's as it is, any other as ZKException."""
    for result in results:
        if isinstance(result, NODE_ERRORS):
            raise result
        if isinstance(result, Exception):
            raise ZKException(f"ZooKeeper refused a transaction: {describe(result)}") from result


def raise_culprit(results: Sequence[Any]) -> None:
    """Like `raise_errors`, but skips the errors of operations that were only rolled back because another one failed."""
    raise_errors([each for each in results if not isinstance(each, (RolledBackError, RuntimeInconsistency))])


def describe(error: BaseException) -> str:
    """The error's type and message."""
    return f"{type(error).__name__} {error}".strip()
