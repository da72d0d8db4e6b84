"""Hooks of mkdocs. The pages are written to be read where the repository is browsed; this makes the site of them.

Some pages outside docs/ are pages of the site too. A link is a path between files of the repository; here it becomes
the path between pages of the site. A link to a file that is no page (a source, a folder) becomes plain text. One to
nothing, or to a page that the site lacks, is left as it is, which fails the strict build.

The word after the language of a code block (the machine on which it runs) becomes the block's title.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Path in the repository: path in the site.
PAGES_OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "tests/simulation/MUTATIONS.md": "mutations.md",
    "tests/simulation/TRACK_RECORD.md": "track-record.md",
}
_HOME = "index.md"
_PATHS_IN_REPOSITORY = {page: path for path, page in PAGES_OUTSIDE.items() if page != _HOME}
_LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[\w-]*)?\)")
_FENCE = re.compile(r"^( *```\w+) ([\w-]+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are outside docs/. The README has no page: links to it lead to the site's home."""
    for page, path in _PATHS_IN_REPOSITORY.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links and the first lines of code blocks."""
    titled = _FENCE.sub(r'\1 title="\2"', markdown)
    return _LINK.sub(lambda link: _rewritten(link, page.file.src_uri), titled)


def _rewritten(link: re.Match[str], page: str) -> str:
    label, target, anchor = link.groups(default="")
    path = os.path.normpath(os.path.join(os.path.dirname(path_in_repository(page)), target))
    in_site = path_in_site(path)
    if not (ROOT / path).exists() or (in_site is None and path.endswith(".md")):
        return link.group()
    if in_site is None:
        return label
    return f"[{label}]({os.path.relpath(in_site, os.path.dirname(page) or '.')}{anchor})"


def path_in_repository(page: str) -> str:
    """Of a page of the site."""
    return _PATHS_IN_REPOSITORY.get(page, f"docs/{page}")


def path_in_site(path: str) -> str | None:
    """Of a file of the repository; None if the site does not have it."""
    if path in PAGES_OUTSIDE:
        return PAGES_OUTSIDE[path]
    folder, _, rest = path.partition("/")
    return rest if folder == "docs" and not rest.endswith(".py") else None
