"""Apache BookKeeper without ZooKeeper in the client: a thin client, metadata gateways, bookies, a Spark source and
sink.

    from bookgate import BookKeeper

    async with BookKeeper.connect("grpc://127.0.0.1:4181") as bookkeeper:
        ledger = await bookkeeper.create_ledger(password=b"secret")
        await ledger.append(b"hello")
        await ledger.close()

The public names are those of `bookgate.api`. `bookgate.blocking` has the client without asyncio.

The packages below this one are folders at the top of the repository, which links in this folder name. They are imported
as `bookgate.…` only, so that an application may have packages of its own called `gateway`, `ledger` or `protos`.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookgate.api import *  # noqa: F403
    from bookgate.api import __all__ as __all__

    __version__: str

# A process with a channel may start others, with `preexec_fn` as PySpark starts Java. gRPC's handlers of fork() crash
# such a child now and then before it runs. No client is used on both sides of a fork, so nothing needs them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# An application that wants the log lines adds a handler; without one, warnings would go to standard error.
logging.getLogger("bookgate").addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("bookgate")
    public = import_module("bookgate.api")
    if name == "__all__" or name in public.__all__:
        return getattr(public, name)
    raise AttributeError(f"module 'bookgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *import_module("bookgate.api").__all__, "__version__"])
