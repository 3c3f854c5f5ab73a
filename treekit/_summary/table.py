"""The table that `tree_summary` returns, as text and as HTML."""

import dataclasses
import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from treekit._base.describe import count, in_columns

_LINES = 500  # in str() at most
_WIDTH = 40  # columns for a value


class Row(NamedTuple):
    """A leaf or a subtree.

    Attributes:
        name: its key path, joined by dots, as `path_mask` and `tree_find` take it; "" for the root.
        type: such as "f32[2,3]" for an array; the class of a subtree, or a short description of another leaf.
        shape: the shape of an array; None for anything else.
        dtype: the dtype of an array or a Python number; of a subtree, each dtype that its arrays have.
        leaves: how many leaves it has.
        numbers: how many numbers its arrays have. Python numbers and PRNG keys do not count.
        bytes: the size of its arrays. An array that is at several places counts at each.
        sharding: the sharding over several devices; of a subtree, that of all of its arrays. None without a sharding,
            or with several.
        mean: with `stats=True`, the mean of the finite numbers of its arrays, and None without such numbers. This and
            those below are None for an array whose values are not known: shapes, traced or deleted arrays.
        std: their standard deviation.
        nans: how many are NaN.
        infs: how many are infinite.
        note: a remark, such as that an array is also at another place, or that the class of an object is not
            registered, so JAX does not see what is in it; or "".
    """

    name: str
    type: str
    shape: tuple[int, ...] | None
    dtype: str | None
    leaves: int
    numbers: int
    bytes: int
    sharding: Any
    mean: float | complex | None = None
    std: float | None = None
    nans: int | None = None
    infs: int | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class TreeSummary:
    """A table of what is in a tree. Its `str()` is a table, and a notebook shows it as one.

    Attributes:
        rows: a row for each leaf; with a `depth`, for each subtree and leaf at this depth, and each leaf above. The
            whole tree is their sum.
        subtrees: a row for each subtree above these, without the root.
        total: the row of the whole tree.
    """

    rows: tuple[Row, ...]
    subtrees: tuple[Row, ...]
    total: Row
    _lines: tuple[Row, ...]  # rows and subtrees, in the order of the tree
    _stats: bool

    def __str__(self) -> str:
        cells = self._cells()
        lines = in_columns([tuple(map(str.strip, row)) for row in cells])
        return "\n".join([*lines, *self._rest(), self._last_line()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        above = {id(row) for row in self.subtrees}
        lines = [_html_row("th", head)]
        for row, cells in zip(self._lines, body, strict=False):
            lines.append(_html_row("th" if id(row) in above else "td", cells))
        after = html.escape(" ".join([*self._rest(), self._last_line()]))
        return f"<table>{''.join(lines)}</table><p>{after}</p>"

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the table, without columns that are empty."""
        shown = self._lines[:_LINES]
        rows = [_cells(row) for row in shown]
        keep = [name in _ALWAYS or any(row[i] for row in rows) for i, name in enumerate(_COLUMNS)]
        return [tuple(cell for cell, kept in zip(row, keep, strict=True) if kept) for row in (_COLUMNS, *rows)]

    def _rest(self) -> list[str]:
        more = len(self._lines) - _LINES
        return [f"… and {count(more, 'more row')}: pass depth=1, or read .rows"] if more > 0 else []

    def _last_line(self) -> str:
        row = self.total
        text = f"{row.type}: {_sizes(row)}"
        if self._stats:
            values = zip(("mean", "std", "NaNs", "infs"), _stats_cells(row), strict=True)
            shown = ", ".join(f"{name} {value}" for name, value in values if value)
            text += f"; {shown}" if shown else ""
        return text


_COLUMNS = ("name", "type", "numbers", "bytes", "sharding", "mean", "std", "NaNs", "infs", "note")
_ALWAYS = ("name", "type", "numbers", "bytes")


def _sizes(row: Row) -> str:
    return f"{count(row.leaves, 'leaf', 'leaves')}, {count(row.numbers, 'number')}, {count(row.bytes, 'byte')}"


def _cells(row: Row) -> tuple[str, ...]:
    sizes = (f"{row.numbers:,}" if row.numbers else "", f"{row.bytes:,}" if row.bytes else "")
    sharding = "" if row.sharding is None else cut(str(getattr(row.sharding, "spec", row.sharding)))
    return (row.name or "(root)", row.type, *sizes, sharding, *_stats_cells(row), row.note)


def _stats_cells(row: Row) -> Iterator[str]:
    for value in (row.mean, row.std):
        yield "" if value is None else f"{value:.3g}"
    for number in (row.nans, row.infs):
        yield "" if number is None else f"{number:,}"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells) + "</tr>"


def cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
