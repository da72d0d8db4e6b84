"""References lead somewhere: links between pages, files that pages name, and what the code says of the specification.

What the code refers to, and in which form, is on docs/protocol/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = DOCS / "protocol"
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]
MADE = {"build", "dist", "htmlcov", "site"}
TEXTS = {".py", ".md", ".proto", ".toml", ".yaml", ".yml", ".js", ".sh"}
THIS = Path(__file__)

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ID = re.compile(r'<a id="([\w-]+)"></a>')
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]*)(?:#([\w-]+))?\)")
_REFERENCE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md(?:#[\w-]+)?")
_DEFINED_ID = re.compile(r'<a id="([a-z]{1,2})(\d{1,2})"></a>')
_OUTSIDE = re.compile(
    r"\bsections?\s+\d|\bpage,\s+section|\bof\s+the\s+specification\b|\bspec/"
    r"|\b(?:wire-protocol|client-protocol|entry-format-and-digests|scoped-ledgers|invariants|known-flaws)`?\s+page\b"
    r"|(?<!\w)(?<!class )Sources?:\s(?!docs/)"
)
_TEST = re.compile(r"\bdef (test_\w+)")
_NAMED_TEST = re.compile(r"`(test_\w+(?:\.py)?)`")
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


def sources() -> Iterator[Path]:
    """Every text of the repository that people write."""
    folders = (path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name not in MADE)
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.suffix in TEXTS and path.is_file() and path != THIS)
    yield from (path for path in ROOT.iterdir() if path.suffix in TEXTS or path.name == "Makefile")


@cache
def texts() -> dict[str, str]:
    return {name_of(path): path.read_text() for path in sources()}


@cache
def defined_ids() -> dict[str, frozenset[str]]:
    """Of invariants and flaws: the numbers that the protocol's pages define, by letter."""
    found: dict[str, set[str]] = {}
    for page in PROTOCOL.glob("*.md"):
        for letters, number in _DEFINED_ID.findall(page.read_text()):
            found.setdefault(letters.upper(), set()).add(number)
    return {letters: frozenset(numbers) for letters, numbers in found.items()}


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


def test_tests_that_pages_name_exist() -> None:
    """In backticks, by their function or their file."""
    files = [*(ROOT / "tests").rglob("test_*.py")]
    known = {name for path in files for name in (path.name, *_TEST.findall(path.read_text()))}
    found = 0
    for page in [*PAGES, ROOT / "tests" / "simulation" / "TRACK_RECORD.md"]:
        for named in _NAMED_TEST.findall(page.read_text()):
            found += 1
            assert named in known, f"{name_of(page)} names {named}"
    assert found > 50


def test_references_to_pages_lead_somewhere() -> None:
    """`docs/protocol/storage.md#replay`, wherever it stands."""
    found = {(name, reference) for name, text in texts().items() for reference in _REFERENCE.findall(text)}
    assert len(found) > 100
    for name, reference in sorted(found):
        path, _, anchor = reference.partition("#")
        assert (ROOT / path).is_file(), f"{name} refers to {path}, which does not exist"
        assert not anchor or anchor in anchors_of(ROOT / path), f"{name} refers to {reference}: no such section"


def test_ids_of_invariants_and_flaws_are_defined() -> None:
    """P, S, M, D and F with a number, in every text: each has its definition and anchor."""
    defined = defined_ids()
    assert set(defined) >= set("PSMDF")
    for letters, numbers in defined.items():
        assert numbers == {str(number) for number in range(1, len(numbers) + 1)}, f"{letters} has a gap"
    used = re.compile(rf"(?<![\w.#%/-])({'|'.join(defined)})([1-9]\d?)(?![\w-])")
    for name, text in texts().items():
        for letters, number in used.findall(text):
            assert number in defined[letters], f"{name} names {letters}{number}, which is defined nowhere"


def test_nothing_refers_to_pages_outside_the_repository() -> None:
    for name, text in texts().items():
        found = _OUTSIDE.search(text)
        assert found is None, f"{name}: {text[found.start() - 40 : found.end() + 40]!r}; see docs/protocol/README.md"
