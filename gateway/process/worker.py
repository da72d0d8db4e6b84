"""A worker of `bookgate gateway --workers N`: a gateway that shares its port with others. Started by `workers` only.

Its settings arrive as one JSON line on standard input, which then stays open: when it ends, the parent is gone and the
worker stops as well. It writes one JSON line to standard output, either the addresses at which it serves or the reason
for not serving. Ctrl-C in a terminal reaches the parent, which decides what happens.
"""

from __future__ import annotations

import signal
import sys

from bookgate.gateway.config import GatewayConfig
from bookgate.gateway.process.serve import Addresses, serve, stop_event
from bookgate.ledger.errors import BKException
from bookgate.runtime.child_process import read_order, report_to_parent, stop_with_parent
from bookgate.runtime.command_line.output import error_text
from bookgate.runtime.event_loop import run_server
from bookgate.runtime.logs import set_up_logging


async def _serve(settings: GatewayConfig) -> None:
    stop = stop_event(signal.SIGTERM)
    stop_with_parent(stop)

    def serving(addresses: Addresses) -> None:
        report_to_parent(addresses._asdict())

    await serve(settings, stop, serving, share_port=True)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = GatewayConfig.model_validate_json(read_order())
    set_up_logging(settings.log_level, settings.log_format)
    try:
        run_server(_serve(settings))
    except (BKException, OSError) as error:
        report_to_parent({"error": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
