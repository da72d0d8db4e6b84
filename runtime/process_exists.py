"""Whether a process of this machine, and of this process-id namespace, exists."""

from __future__ import annotations

import os


def process_exists(pid: int) -> bool:
    """Asks the kernel, which also knows processes that /proc hides (`ProtectProc=` of systemd). A zombie exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to another user or user namespace.
        return True
    return True
