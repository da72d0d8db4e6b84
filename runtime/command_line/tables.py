"""Tables as commands print them: for a person on a terminal, tab-separated for a program.

On a terminal a table is laid out for its width. Elsewhere, or with `--output tsv`, a row is a line and cells are
separated by tabs, the first line naming the columns; a tab, a line end and a backslash within a cell are `\\t`, `\\n`,
`\\r` and `\\\\`. Other characters that a terminal obeys are `\\u001b` and so on, in either form. A `RowWriter` prints
rows as they come, for listings of any length: it takes the widths from the first page.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from bookgate.runtime.control_characters import ESCAPES, visible

_ESCAPES = ESCAPES | str.maketrans({"\\": "\\\\"})


@dataclass(frozen=True, slots=True)
class Styled:
    """A cell with a style for terminals, such as `bold red`."""

    text: str
    style: str


Cell = str | Styled


class Table:
    """Columns and rows. A column is aligned to the right when its name is in `right`."""

    def __init__(self, *columns: str, right: Sequence[str] = (), title: str | None = None, header: bool = True) -> None:
        self.columns = columns
        self.right = frozenset(right)
        self.title = title
        self.header = header
        self.rows: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: Cell) -> None:
        self.rows.append(cells)

    def print_laid_out(self) -> None:
        """Prints the table in the terminal's width, with lines around it."""
        from rich.console import Console
        from rich.table import Table as Layout
        from rich.text import Text

        def _shown(cell: Cell) -> Text:
            styled = cell if isinstance(cell, Styled) else Styled(cell, "")
            return Text(visible(styled.text), styled.style)

        layout = Layout(title=self.title, title_justify="left", show_header=self.header)
        for name in self.columns:
            layout.add_column(Text(visible(name)), justify="right" if name in self.right else "left", overflow="fold")
        for row in self.rows:
            layout.add_row(*map(_shown, row))
        Console().print(layout)

    def print_separated(self) -> None:
        """Prints the table tab-separated."""
        lines = [self.columns] if self.header else []
        text = "".join(separated(row) for row in (*lines, *self.rows))
        sys.stdout.write(text)
        sys.stdout.flush()


def separated(cells: Sequence[Cell]) -> str:
    """One line of tab-separated cells."""
    texts = (each.text if isinstance(each, Styled) else each for each in cells)
    return "\t".join(text.translate(_ESCAPES) for text in texts) + "\n"


@dataclass(slots=True)
class RowWriter:
    """Prints rows page by page. `laid_out`: for a terminal; else tab-separated. Columns in `right` are numbers."""

    columns: Sequence[str]
    laid_out: bool
    right: frozenset[str] = frozenset()
    _widths: list[int] = field(default_factory=list)
    _began: bool = False

    def write(self, rows: Sequence[Sequence[str]]) -> None:
        """Prints a page, with the names of the columns before the first one."""
        lines = [] if self._began else [self._line(self.columns, rows)]
        self._began = True
        lines += [self._line(row, rows) for row in rows]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def end(self) -> None:
        """Prints the names of the columns if there was no row."""
        if not self._began:
            self.write([])

    def _line(self, row: Sequence[str], page: Sequence[Sequence[str]]) -> str:
        if not self.laid_out:
            return separated(row)
        if not self._widths:
            self._widths = [max(map(_width, column)) for column in zip(self.columns, *page, strict=True)]
        padded = []
        for name, width, text in zip(self.columns, self._widths, row, strict=True):
            shown = text.translate(_ESCAPES)
            space = " " * max(width - _width(shown), 0)
            padded.append(space + shown if name in self.right else shown + space)
        return _cut("  ".join(padded).rstrip(), shutil.get_terminal_size().columns) + "\n"


def _width(text: str) -> int:
    """Width on a terminal; wide characters of East Asian scripts take two columns."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _cut(line: str, width: int) -> str:
    """The line cut to the width of the terminal."""
    if _width(line) <= width:
        return line
    while line and _width(line) >= width:
        line = line[: min(len(line) - 1, width)]
    return line + "…"
