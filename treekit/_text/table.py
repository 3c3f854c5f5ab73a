"""Tables, as text for a terminal and as HTML for a notebook."""

import html
import os
import sys
from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple

from treekit._text.describe import count

ROWS = 50  # in str() at most
BOLD, YELLOW, RED, GREEN, PLAIN = "\033[1m", "\033[33m", "\033[31m", "\033[32m", "\033[0m"


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
        """Write each row on a line."""
        bold, yellow, plain = (BOLD, YELLOW, PLAIN) if colours else [""] * 3
        head, *lines = in_columns(self._cells())
        lines = [f"{yellow}{x}{plain}" if i in self.highlighted else x for i, x in enumerate(lines)]
        return "\n".join([f"{bold}{head}{plain}", *lines, *self.after])

    def html(self) -> str:
        """Write it for `_repr_html_`."""
        lines: list[str] = []
        for i, cells in enumerate(self._cells(), -1):
            tag = "th" if i < 0 or i in self.highlighted else "td"
            cell = f'<{tag} style="text-align: left">{{}}</{tag}>'
            lines.append(f"<tr>{''.join(cell.format(html.escape(text)) for text in cells)}</tr>")
        return f"<table>{''.join(lines)}</table>" + "".join(f"<p>{html.escape(line)}</p>" for line in self.after)

    def _cells(self) -> list[tuple[str, ...]]:
        columns = zip(self.columns, *self.rows, strict=True)
        return list(zip(*(x for x in columns if x[0] not in self.optional or any(x[1:])), strict=True))


def left_out(number: int, advice: str = "") -> list[str]:
    """Return a line that says how many rows are not shown; none if all are."""
    return [f"… and {count(number, 'more row')}{advice}"] * (number > 0)


def in_columns(rows: Sequence[tuple[str, ...]], gap: str = "  ") -> list[str]:
    """Write each row on a line, with its cells below those of the row before."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(map(str.ljust, row, widths)).rstrip() for row in rows]


def as_table(rows: Sequence[tuple[str, str, str, str]], colours: bool) -> str:
    """Align rows of a name, a kind, a left and a right description in columns; at most fifty rows."""
    yellow, red, green, plain = (YELLOW, RED, GREEN, PLAIN) if colours else [""] * 4
    lines = in_columns(
        [
            (name, f"{yellow}{kind}{plain}", f"{red}{left}{plain} | {green}{right}{plain}")
            for name, kind, left, right in rows[:ROWS]
        ]
    )
    return "\n".join([*lines, *more_rows(rows)])


def more_rows(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return a line that counts the rows after the first fifty by their kinds; none for fifty rows or fewer."""
    kinds = Counter(kind for _, kind, _, _ in rows[ROWS:])
    counts = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
    return [f"… and {len(rows) - ROWS} more: {counts}"] * bool(kinds)


def in_colours() -> bool:
    """Whether the output goes to a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
