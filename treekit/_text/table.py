"""Tables, as text for a terminal and as HTML for a notebook."""

import html
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from treekit._text.describe import count

ROWS = 50  # in str() at most
WIDTH = 80  # columns of a terminal
_INDENT = 4  # columns, of what stands below a long name, and of tables in errors
BOLD, YELLOW, RED, GREEN, PLAIN = "\033[1m", "\033[33m", "\033[31m", "\033[32m", "\033[0m"
_COLOUR = re.compile(r"\033\[\d+m")


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


def left_out(number: int, advice: str = "") -> list[str]:
    """Return a line that says how many rows are not shown; none if all are."""
    return [f"… and {count(number, 'more row')}{advice}"] * (number > 0)


def in_columns(
    rows: Sequence[tuple[str, ...]], gap: str = "  ", width: int = WIDTH, *, has_notes: bool = False
) -> list[str]:
    """Write each row on a line, with its cells below those of the row before.

    If lines would be longer than `width`, cells go on in the lines below. A name, which is the first cell of a row, has
    lines of its own if it does not fit into the first column, which is as wide as makes the fewest lines.

    Args:
        rows: the cells of each row.
        gap: what separates columns.
        width: that of the longest line.
        has_notes: whether the last column has remarks, with a heading. Those that do not fit into what the others leave
            have lines of their own.
    """
    if not rows:
        return []
    names, *others = zip(*rows, strict=True)
    room = width - len(gap) * len(others)
    longest, *others_longest = (max(map(_length, column)) for column in (names, *others))
    does_fit = longest + sum(others_longest) <= room
    sizes = {longest} if does_fit else {min(longest, _INDENT), *filter(room.__gt__, map(_length, names))}

    def lay_out(size: int, last: Sequence[str]) -> list[str]:
        widths = _narrowed([*others[:-1], last], room - size)
        if has_notes:
            widths[-1] = room - size - sum(widths[:-1])
        return [_row(cells, [size, *widths], gap, width, has_notes) for cells in rows]

    # The last column may be as narrow as the heading of notes.
    lasts = [others[-1][:1], others[-1]] if has_notes else [others[-1]]
    layouts = itertools.starmap(lay_out, itertools.product(sorted(sizes)[::-1], lasts))
    return min(layouts, key=lambda lines: sum(line.count("\n") for line in lines))


def _narrowed(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of columns that share this room: the widest gives way first, and words are broken last."""
    widths = [max(map(_length, column)) for column in columns]
    words = [max(_length(word) for text in column for word in text.split(" ")) for column in columns]
    for _ in range(sum(widths) - max(room, len(widths))):
        i = max(range(len(widths)), key=lambda i: (widths[i] > words[i], widths[i]))
        widths[i] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], gap: str, width: int, has_note: bool) -> str:
    *cells, note = cells if has_note else (*cells, "")
    above, below = list[str](), list[str]()
    if _length(cells[0]) > widths[0]:
        above, cells[0] = list(_wrap(cells[0], width)), ""
    if has_note and _length(note) <= widths[-1]:
        cells.append(note)
    else:
        below = [" " * _INDENT + line for line in _wrap(note, width - _INDENT)]
    grid = itertools.zip_longest(*map(_wrap, cells, widths), fillvalue="")
    lines = [gap.join(map(_padded, line, widths)).rstrip() for line in grid]
    return "\n".join(line for line in (*above, *lines, *below) if line.strip())


def wrapped(text: str) -> str:
    """Break text into lines that fit."""
    return "\n".join(_wrap(text, WIDTH))


def _wrap(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split(" "):
        *parts, last = _broken(word, width)
        if line and (parts or _length(line) + 1 + _length(last) > width):
            yield line
            line = ""
        yield from parts
        line = f"{line} {last}" if line else last
    yield line


def _broken(word: str, width: int) -> Iterator[str]:
    """Break a word that does not fit, such as a key path, after a dot, or else a mark, that is in the second half."""
    colour, plain = (_COLOUR.findall(word) or [""] * 2)[:2]
    word = _COLOUR.sub("", word)
    while len(word) > width:
        dot, *marks = (word.rfind(mark, width // 2, width) + 1 for mark in ".,/_")
        end = dot or max(marks) or width
        yield f"{colour}{word[:end]}{plain}"
        word = word[end:]
    yield f"{colour}{word}{plain}"


def _length(text: str) -> int:
    return len(_COLOUR.sub("", text))


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _length(text))


def as_table(rows: Sequence[tuple[str, str, str, str]], colours: bool) -> str:
    """Align rows of a name, a kind, a left and a right description in columns; at most fifty rows."""
    yellow, red, green = (YELLOW, RED, GREEN) if colours else [""] * 3
    lines = in_columns(
        [
            (name, _coloured(kind, yellow), f"{_coloured(left, red)} | {_coloured(right, green)}")
            for name, kind, left, right in rows[:ROWS]
        ],
        width=WIDTH - _INDENT,
    )
    return "\n".join([*lines, *more_rows(rows)])


def _coloured(text: str, colour: str) -> str:
    """Colour each word, since lines may be broken between them."""
    return " ".join(f"{colour}{word}{PLAIN}" for word in text.split(" ")) if colour else text


def more_rows(rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return a line that counts the rows after the first fifty by their kinds; none for fifty rows or fewer."""
    kinds = Counter(kind for _, kind, _, _ in rows[ROWS:])
    counts = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
    return [f"… and {len(rows) - ROWS} more: {counts}"] * bool(kinds)


def in_colours() -> bool:
    """Whether the output goes to a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
