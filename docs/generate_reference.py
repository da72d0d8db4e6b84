"""Writes docs/reference: commands.md from the commands, logs.md from the calls that log, states.md from the tables.

`make reference` runs it; `--check` writes nothing and fails when a page is not what would be written. The Python API
needs no generator: mkdocstrings takes the docstrings into the site.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import command_reference
import log_reference
import state_reference

REFERENCE = Path(__file__).parent / "reference"


def main() -> None:
    pages = {
        REFERENCE / "commands.md": command_reference.render(),
        REFERENCE / "logs.md": log_reference.render(),
        REFERENCE / "states.md": state_reference.render(),
    }
    REFERENCE.mkdir(exist_ok=True)
    for path, page in pages.items():
        if "--check" not in sys.argv:
            path.write_text(page, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page:
            sys.exit(f"{path} is not up to date; run: make reference")


if __name__ == "__main__":
    main()
