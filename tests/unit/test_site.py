"""The documentation site, which `make docs` builds: what its hooks make of pages, and that the reference is whole."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import bookgate
import bookgate.blocking
import bookgate.streams

DOCS = Path(__file__).parents[2] / "docs"
_SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = _hooks()


def on_site(markdown: str, page: str) -> str:
    """What mkdocs gets to see of a page of the site."""
    where = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    return str(hooks.on_page_markdown(markdown, where, None, None))


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("testing.md", "[a](../tests/simulation/MUTATIONS.md)", "[a](mutations.md)"),
        ("protocol/wire.md", "[a](../../benchmarks/RESULTS.md#client)", "[a](../benchmarks.md#client)"),
        ("mutations.md", "[a](../../docs/testing.md#chaos)", "[a](testing.md#chaos)"),
        ("client.md", "[a](../README.md)", "[a](index.md)"),
        ("client.md", "![a](images/console-cluster-light.png)", "![a](images/console-cluster-light.png)"),
        ("reference/logs.md", "[a](../spark.md#jobs)", "[a](../spark.md#jobs)"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(page: str, link: str, shown: str) -> None:
    assert on_site(link, page) == shown


@pytest.mark.parametrize("link", ["[the units](../deploy/systemd)", "[the units](../docs/site_hooks.py)"])
def test_a_link_to_what_is_no_page_becomes_text(link: str) -> None:
    assert on_site(link, "client.md") == "the units"


@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[a](../LICENSE.md)", "[a](https://example.org/a.md)", "[a](#b)"])
def test_other_links_are_left_to_mkdocs(link: str) -> None:
    assert on_site(link, "client.md") == link


def test_the_machine_of_a_code_block_is_its_title() -> None:
    assert on_site("```sh bookie-1\nls\n```\n", "operations.md") == '```sh title="bookie-1"\nls\n```\n'


def test_the_reference_has_every_public_name() -> None:
    pages = (DOCS / "reference").glob("python-*.md")
    shown = [name for page in pages for name in _SHOWN.findall(page.read_text())]
    public = {f"bookgate.{name}" for name in bookgate.__all__}
    public |= {f"bookgate.blocking.{name}" for name in bookgate.blocking.__all__}
    # The position and the error are public names of the package too, and the scope is a number.
    public |= {f"bookgate.streams.{name}" for name in bookgate.streams.__all__ if name not in bookgate.__all__}
    public.remove("bookgate.streams.DEFAULT_SCOPE")
    assert sorted(shown) == sorted(public)
