"""The identity of a gateway process: prevents two processes from carrying out one create with a generated id.

A process recognises a repeated create by its request token, and only during its own lifetime. A process restarted at
the same address, or another worker at the same port, would create a second ledger. Each process therefore draws an id
when it starts and returns it with every unary response, in the trailing metadata `bookgate-instance`. A client sends
the id of the intended process in the metadata of a create, under the same key. Any other instance rejects the call with
FAILED_PRECONDITION without executing it, unless it has already seen the request token. Callers that name no instance
are served normally.
"""

from __future__ import annotations

import uuid

from bookgate.gateway.services.status import Context
from bookgate.ledger.wire.gateway_headers import INSTANCE


class Instance:
    """This process's identity; see the module. One per gateway."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex

    def tell(self, context: Context) -> None:
        """Adds the id to the trailing metadata of the call."""
        context.set_trailing_metadata(((INSTANCE, self.id),))

    def is_meant(self, context: Context) -> bool:
        """False if the caller names another process."""
        return all(value == self.id for key, value in context.invocation_metadata() or () if key == INSTANCE)
