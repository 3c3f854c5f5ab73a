"""Tables, as text for a terminal and as HTML for a notebook."""

import abc
import html
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Container, Sequence
from typing import NamedTuple

from treekit._text.describe import count

ROWS = 50  # in str() at most
WIDTH = 80  # columns of a terminal
_INDENT = 4  # columns, of what stands below a long name, and of tables in errors
_NAME = 24  # columns that names have at least, if they need them
_NOTE = 8  # the same of notes
BOLD, YELLOW, RED, GREEN, PLAIN = "\033[1m", "\033[33m", "\033[31m", "\033[32m", "\033[0m"
_COLOUR = re.compile(r"\033\[\d+m")


class Shown(abc.ABC):
    """Something with a table, which `str()` returns, `show` prints, and a notebook shows."""

    @abc.abstractmethod
    def _table(self) -> "Table | Comparison": ...

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
        bold, yellow, plain = (BOLD, YELLOW, PLAIN) if colours else [""] * 3
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
        yellow, red, green = (YELLOW, RED, GREEN) if colours else [""] * 3
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


def in_columns(
    rows: Sequence[tuple[str, ...]], gap: str = "  ", width: int = WIDTH, *, has_notes: bool = False
) -> list[str]:
    """Write each row on a line, with its cells below those of the row before.

    Each column is as wide as its longest cell. If lines would be longer than `width`, the widest columns give way, and
    their cells go on in the lines below. Names, which are the first cells, have lines of their own if they are longer
    than what the other columns leave.

    Args:
        rows: the cells of each row.
        gap: what separates columns.
        width: that of the longest line.
        has_notes: whether the last column has remarks, with a heading. Those that are longer than what the others leave
            have lines of their own too.
    """
    if not rows:
        return []
    names, *columns = zip(*rows, strict=True)
    room = width - len(gap) * len(columns)
    if has_notes:
        room -= min(_longest(columns.pop()), _NOTE)
    room_for_names = max(room - sum(map(_longest, columns)), _NAME)
    names_width = max((_length(name) for name in names if _length(name) <= room_for_names), default=_INDENT)
    widths = [names_width, *_narrowed(columns, room - names_width)]
    if has_notes:
        widths.append(width - len(gap) * len(widths) - sum(widths))
    return [_row(cells, widths, gap, width, has_notes) for cells in rows]


def _narrowed(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns that share this room: the widest gives way first, and words are broken last."""
    widths = list(map(_longest, columns))
    words = [max(_length(word) for text in column for word in text.split(" ")) for column in columns]
    for _ in range(sum(widths) - max(room, len(widths))):
        i = max(range(len(widths)), key=lambda i: (widths[i] > words[i], widths[i]))
        widths[i] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], gap: str, width: int, has_note: bool) -> str:
    """Write a row; a name that does not fit into its column above it, and a note below it."""
    name, *others, last = cells
    above = _wrap(name, width) if _length(name) > widths[0] else []
    below = _wrap(last, width - _INDENT) if has_note and _length(last) > widths[-1] else []
    beside = ["" if above else name, *others, "" if below else last]
    grid = itertools.zip_longest(*map(_wrap, beside, widths), fillvalue="")
    lines = [gap.join(map(_padded, line, widths)).rstrip() for line in grid]
    return "\n".join(line for line in (*above, *lines, *(" " * _INDENT + line for line in below)) if line)


def wrapped(text: str) -> str:
    """Break text into lines that fit."""
    return "\n".join(_wrap(text, WIDTH))


def _wrap(text: str, width: int) -> list[str]:
    lines, line = list[str](), ""
    for word in text.split(" "):
        *parts, last = _broken(word, width)
        if line and (parts or _length(line) + 1 + _length(last) > width):
            lines.append(line)
            line = ""
        lines += parts
        line = f"{line} {last}" if line else last
    return [*lines, line]


def _broken(word: str, width: int) -> list[str]:
    """Break a word that does not fit, such as a key path, after a dot, or else a mark, that is in the second half."""
    colour, plain = (_COLOUR.findall(word) or [""] * 2)[:2]
    word = _COLOUR.sub("", word)
    parts = list[str]()
    while len(word) > width:
        dot, *marks = (word.rfind(mark, width // 2, width) + 1 for mark in ".,/_")
        end = dot or max(marks) or width
        parts.append(word[:end])
        word = word[end:]
    return [f"{colour}{part}{plain}" for part in (*parts, word)]


def _longest(column: Sequence[str]) -> int:
    return max(map(_length, column))


def _length(text: str) -> int:
    return len(_COLOUR.sub("", text))


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _length(text))


def _coloured(text: str, colour: str) -> str:
    """Colour each word, since lines may be broken between them."""
    return " ".join(word and f"{colour}{word}{PLAIN}" for word in text.split(" ")) if colour else text
