"""Which gateway process this is: what keeps a creation with a generated id from being carried out by two of them.

A process knows such a request by its token, and only for as long as it lives; one started anew at the same address, or
the next worker at the same port, would make a second ledger of it. So each process draws an id when it starts, and
tells it with every answer to a unary call, in the trailing metadata `bookgate-instance`. A client names in the metadata
of a creation the process that it means, by the same key. Any other one answers FAILED_PRECONDITION and has not done it,
unless it knows the token after all. Whoever names nobody is served as ever.
"""

from __future__ import annotations

import uuid

from bookgate.gateway.services.status import Context
from bookgate.ledger.wire.gateway_headers import INSTANCE


class Instance:
    """See the module. One a gateway."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex

    def tell(self, context: Context) -> None:
        """Goes with the call's answer, whatever that will be."""
        context.set_trailing_metadata(((INSTANCE, self.id),))

    def is_meant(self, context: Context) -> bool:
        """False where the caller names another process."""
        return all(value == self.id for key, value in context.invocation_metadata() or () if key == INSTANCE)
