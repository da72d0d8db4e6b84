"""The common prefix of the console's own paths."""

from __future__ import annotations

CONSOLE = "/api/v1/console"
