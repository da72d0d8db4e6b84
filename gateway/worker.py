"""A worker of `bookgate gateway --workers N`: a gateway that shares its port with others. For `workers` only.

Its settings come as one JSON line on standard input, which then stays open: when it ends, the parent is gone and the
worker stops too. On standard output it writes one JSON line, the addresses at which it serves or what is wrong.
Ctrl-C in a terminal reaches the parent, who says what is to be done.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from gateway.config import GatewayConfig
from gateway.process import Addresses, run, serve, stop_event
from ledger.errors import BKException
from reporting.logs import set_up_logging
from reporting.output import error_text


async def _serve(settings: GatewayConfig) -> None:
    stop = stop_event(signal.SIGTERM)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _ended, stop)

    def serving(addresses: Addresses) -> None:
        _tell(addresses._asdict())

    await serve(settings, stop, serving, share_port=True)


def _ended(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


def _tell(answer: dict[str, str | None]) -> None:
    print(json.dumps(answer), flush=True)


def _read_settings() -> GatewayConfig:
    """Byte by byte: what follows is for the event loop."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            break
        line += byte
    return GatewayConfig.model_validate_json(bytes(line))


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = _read_settings()
    set_up_logging(settings.log_level, settings.log_format)
    try:
        run(_serve(settings))
    except (BKException, OSError) as error:
        _tell({"error": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
