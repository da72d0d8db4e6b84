"""How long the end of a handle may take after an error in the body of `async with`.

Whoever leaves the block must hear of the error, also where the end waits for bookies that do not come back:
`asyncio.timeout` cancels once only, so nothing else would end that wait.

Not its job: how a handle ends early (the handles).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

PATIENCE_IN_ADD_TIMEOUTS = 2
"""One to notice that a bookie is gone, one for the bookie in its place."""


async def end_after_error(
    end: Callable[[], Coroutine[Any, Any, None]], give_up: Callable[[], object], add_timeout: float
) -> None:
    """Waits for `end`, whose error is nobody's; calls `give_up` once that has taken too long, to make it return.

    `give_up` does nothing where the handle has ended.
    """
    patience = asyncio.get_running_loop().call_later(PATIENCE_IN_ADD_TIMEOUTS * add_timeout, give_up)
    # The caller must see the body's own error.
    await asyncio.gather(end(), return_exceptions=True)
    # Not where this wait was cancelled: what `end` has begun goes on, and nothing else would bound it.
    patience.cancel()
