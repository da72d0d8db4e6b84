"""References lead somewhere: links between pages, files that pages name, and what the code says of the specification.

What the code refers to, and in which form, is on docs/protocol/README.md.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = DOCS / "protocol"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ID = re.compile(r'<a id="([\w-]+)"></a>')
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]*)(?:#([\w-]+))?\)")
_NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|pyi|proto|toml|md))`")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Slugs of the headings of a page, and what `<a id>` names."""
    text = page.read_text()
    headings = _HEADING.findall(_FENCED.sub("", text))
    slugs = [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
    anchors = [*slugs, *_ID.findall(text)]
    if page.parent == PROTOCOL:
        assert len(anchors) == len(set(anchors)), f"{name_of(page)} has an anchor twice: {sorted(anchors)}"
    return frozenset(anchors)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors_of(file.resolve()), f"{name_of(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_pages_name_exist(page: Path) -> None:
    """In backticks, as a path from the root of the repository."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    for named in _NAMED_FILE.findall(page.read_text()):
        if named.partition("/")[0] in folders:
            assert (ROOT / named).exists(), f"{name_of(page)} names {named}"
