"""Warns of secrets among the source options that a command line gives as `--option NAME=VALUE`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bookgate.runtime.command_line.secret_options import warn_of_argument
from bookgate.thinclient.spark.options.read_options import FROM_METADATA

_SECRET = re.compile("token|password", re.IGNORECASE)
"""The pattern by which Spark itself recognises secrets."""


def warn_of_secrets(options: Mapping[str, str]) -> None:
    """Prints one line on standard error for each secret, since `ps` shows it to every user of the machine."""
    for name, value in options.items():
        if not _SECRET.search(name) or name.lower().endswith("_file") or value.strip().lower() == FROM_METADATA:
            continue
        instead = "--password-file, or passwords=metadata" if "password" in name.lower() else "client.token_file"
        warn_of_argument(f"--option {name}", instead)
