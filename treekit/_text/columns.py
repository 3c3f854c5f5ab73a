"""Rows in aligned columns, which fit a terminal."""

import itertools
import re
from collections.abc import Sequence

WIDTH = 80  # columns of a terminal
_INDENT = 4  # columns before a long note; or those of the names, if all are long
_NAME = 24  # columns that names have at least, if they need them
_NOTE = 8  # columns that notes have at least, if they need them
_COLOUR = re.compile(r"\033\[\d+m")


def in_columns(
    rows: Sequence[tuple[str, ...]], gap: str = "  ", width: int = WIDTH, *, has_notes: bool = False
) -> list[str]:
    """Write each row on a line, with its cells below those of the row before.

    Each column is as wide as its longest cell. If lines would be longer than `width`, the widest columns give way, and
    their cells go on in the lines below. Names, which are the first cells, and notes have lines of their own if they
    are longer than what the other columns leave. In 40 columns:

        path         shape      note
        head.bias    f32[3]     same
        layers.0.attention.kernel
                     f32[3, 4]  cast
        head.weight  f32[2, 3]
            from f64, which does not fit, so it
            is cast

    Args:
        rows: the cells of each row.
        gap: what separates columns.
        width: that of the longest line.
        has_notes: whether the last column has notes, with a heading.
    """
    if not rows:
        return []
    names, *columns = zip(*rows, strict=True)
    room = width - len(gap) * len(columns)
    if has_notes:
        notes = columns.pop()  # which get what the others leave
        room -= min(_longest(notes), _NOTE)
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
    """Write a row on a line, or on several: a name that its column cannot hold is above them, and such a note below."""
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
