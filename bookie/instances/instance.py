"""One instance: a bookie as a child process of the supervisor, which alone starts it.

Its order arrives as one JSON line on standard input, which then stays open: when it ends, the supervisor is gone and
the bookie stops as well. It reports JSON lines on standard output: its addresses once it serves, or
why it does not, then its status whenever that changes. Ctrl-C in a terminal, and a SIGHUP that all processes of the
service get, reach the supervisor, which decides what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from bookgate.bookie.instances.order import Order
from bookgate.bookie.server import BookieServer
from bookgate.gateway.process.serve import stop_event
from bookgate.ledger.errors import BKException
from bookgate.runtime.background import keep_running
from bookgate.runtime.child_process import read_order, report_to_parent, stop_with_parent
from bookgate.runtime.command_line.output import error_text
from bookgate.runtime.event_loop import run_server
from bookgate.runtime.garbage import leave_out_what_is_there
from bookgate.runtime.logs import add_to_every_line, set_up_logging

_LOOK_SECONDS = 0.5


async def _serve(server: BookieServer) -> None:
    stop = stop_event(signal.SIGTERM)
    stop_with_parent(stop)
    forward = asyncio.get_running_loop().create_task(_stop_when(stop, server))
    telling: asyncio.Task[None] | None = None
    try:
        await server.start()
        report_to_parent({**server.addresses, "status": server.status})
        telling = keep_running("reports of an instance", lambda: _tell_changes(server))
        leave_out_what_is_there()
        await server.run_until_stopped()
    finally:
        for task in (forward, telling):
            if task is not None:
                task.cancel()
        await server.stop()


async def _stop_when(stop: asyncio.Event, server: BookieServer) -> None:
    await stop.wait()
    server.request_stop()


async def _tell_changes(server: BookieServer) -> None:
    told = None
    while True:
        status = server.status
        if status != told:
            report_to_parent({"status": status})
            told = status
        await asyncio.sleep(_LOOK_SECONDS)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = Order.from_line(read_order())
    try:
        settings = order.settings()
        set_up_logging(settings.log_level, settings.log_format)
        add_to_every_line(instance=order.number)
        run_server(_serve(BookieServer(settings)))
    except (BKException, OSError) as error:
        # The supervisor may be gone.
        with contextlib.suppress(OSError):
            report_to_parent({"error": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
