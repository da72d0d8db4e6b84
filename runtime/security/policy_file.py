"""The policy as its file has it: read anew when it changes. A broken one is refused loudly, and the old one stays."""

from __future__ import annotations

from pathlib import Path

from bookgate.runtime.security.policy import Policy, parse_policy
from bookgate.runtime.security.watched_file import WatchedFile


class PolicyFile(WatchedFile[Policy]):
    """See the module. Raises IncorrectParameterException for a file that can't be used at first."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, parse_policy, "policy file")
