"""Tables, as text for a terminal and as HTML for a notebook."""

import abc
import html
import os
import sys
from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple

from treekit._text.columns import WIDTH, in_columns, wrapped
from treekit._text.describe import count

ROWS = 50  # in str() at most
_INDENT = 4  # columns, of a table in an error
_BOLD, _YELLOW, _RED, _GREEN, _PLAIN = "\033[1m", "\033[33m", "\033[31m", "\033[32m", "\033[0m"


class Shown(abc.ABC):
    """Something with a table, which `str()` returns, `show` prints, and a notebook shows."""

    @abc.abstractmethod
    def _table(self) -> "Table | Comparison":
        """Return the table."""

    def __str__(self) -> str:
        return self._table().text()

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set.

        >>> from treekit import tree_diff
        >>> tree_diff({"w": 1, "b": 2}, {"w": 1, "b": 3}).show()
        b  value  2 | 3  off by up to 1, relative 0.333
        """
        print(self._table().text(sys.stdout.isatty() and not os.environ.get("NO_COLOR")))

    def _repr_html_(self) -> str:
        return self._table().html()


class Table(NamedTuple):
    """A table, as text for a terminal and as HTML for a notebook.

    Attributes:
        columns: their names.
        rows: the cells of each row that is shown.
        after: lines below it.
        optional: the columns that are shown only if one of their cells is not empty.
        highlighted: the indices of rows that are yellow in a terminal, and headings in a notebook.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    after: Sequence[str]
    optional: Container[str] = ()
    highlighted: Container[int] = ()

    def text(self, colours: bool = False) -> str:
        """Write each row on a line, or on several."""
        bold, yellow, plain = (_BOLD, _YELLOW, _PLAIN) if colours else [""] * 3
        cells = self._cells()
        head, *lines = in_columns(cells, has_notes=cells[0][-1] == "note")
        lines = [f"{yellow}{x}{plain}" if i in self.highlighted else x for i, x in enumerate(lines)]
        return "\n".join([f"{bold}{head}{plain}", *lines, *map(wrapped, self.after)])

    def html(self) -> str:
        """Write it for `_repr_html_`."""
        lines: list[str] = []
        for i, cells in enumerate(self._cells(), -1):
            tag = "th" if i < 0 or i in self.highlighted else "td"
            name, *others = (f'<{tag} style="text-align: left">{html.escape(text)}</{tag}>' for text in cells)
            name = name.replace("left", "left; overflow-wrap: anywhere", 1)  # long names do not make the page wider
            lines.append(f"<tr>{''.join([name, *others])}</tr>")
        return f"<table>{''.join(lines)}</table>" + "".join(f"<p>{html.escape(line)}</p>" for line in self.after)

    def _cells(self) -> list[tuple[str, ...]]:
        columns = zip(self.columns, *self.rows, strict=True)
        return list(zip(*(x for x in columns if x[0] not in self.optional or any(x[1:])), strict=True))


class Comparison(NamedTuple):
    """A table of what two trees have. It is cut after fifty rows. In a terminal, it has no heading.

    Attributes:
        columns: their names: of a name, a kind, and what is left and right of it.
        rows: the cells of each row.
        title: a line above it.
    """

    columns: tuple[str, str, str, str]
    rows: Sequence[tuple[str, str, str, str]]
    title: str = ""

    def text(self, colours: bool = False) -> str:
        """Write each row on a line, or on several, with `left | right` as one cell."""
        yellow, red, green = (_YELLOW, _RED, _GREEN) if colours else [""] * 3
        title = f"{self.title} ({self.columns[2]} | {self.columns[3]})" if self.title and self.rows else self.title
        cells = [
            (name, _coloured(kind, yellow), f"{_coloured(left, red)} | {_coloured(right, green)}")
            for name, kind, left, right in self.rows[:ROWS]
        ]
        lines = in_columns(cells, width=WIDTH - _INDENT)
        return "\n".join([*([wrapped(title)] if title else []), *lines, *self._after()])

    def html(self) -> str:
        """Write it for `_repr_html_`."""
        title = f"<p>{self.title}</p>" if self.title else ""
        return title + (Table(self.columns, self.rows[:ROWS], self._after()).html() if self.rows else "")

    def _after(self) -> list[str]:
        kinds = Counter(kind for _, kind, _, _ in self.rows[ROWS:])
        counts = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
        return left_out(len(self.rows) - ROWS, f": {counts}")


def left_out(number: int, advice: str = "") -> list[str]:
    """Return a line that says how many rows are not shown; none if all are."""
    return [f"… and {count(number, 'more row')}{advice}"] * (number > 0)


def _coloured(text: str, colour: str) -> str:
    """Colour each word, since lines may be broken between them."""
    return " ".join(word and f"{colour}{word}{_PLAIN}" for word in text.split(" ")) if colour else text
