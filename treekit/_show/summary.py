"""`tree_summary`: walk through a tree, add up what its leaves have, and show it as a table."""

import dataclasses
import enum
import functools
import math
import operator
import sys
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.core import Tracer

from treekit._base.dtype import ARRAYS, dtype_of, has_dtype, is_number
from treekit._base.flax import is_variable
from treekit._base.jax import is_ref, jtu, untyped
from treekit._base.predicates import is_parameter
from treekit._base.types import PyTree
from treekit._names.key_path import keyed_children, start_below
from treekit._show.statistics import measure, together
from treekit._text.arguments import refuse_class
from treekit._text.describe import count, describe, describe_bytes, describe_function, describe_value, shortened
from treekit._text.table import Shown, Table, left_out

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
class TreeSummary(Shown):
    """A table of what is in a tree: its `str()` and its `repr`. `show()` prints it, and a notebook shows it.

    Attributes:
        rows: a row for each leaf; with a `depth`, for each subtree and leaf at this depth, and each leaf above. The
            whole tree is their sum.
        subtrees: a row for each subtree above these, without the root.
        total: the row of the whole tree.
    """

    rows: tuple[Row, ...]
    subtrees: tuple[Row, ...]
    total: Row
    _lines: tuple[tuple[Row, bool], ...]  # rows and subtrees in the order of the tree, and which are rows
    _stats: bool

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> Table:
        row = self.total
        sizes = count(row.leaves, "leaf", "leaves"), count(row.numbers, "number"), describe_bytes(row.bytes)
        last_line = f"{row.type}: {', '.join(sizes)}"
        if self._stats:
            values = zip(("mean", "std", "NaNs", "infs"), _stats_cells(row), strict=True)
            shown = ", ".join(f"{name} {value}" for name, value in values if value)
            last_line += f"; {shown}" if shown else ""
        return Table(
            ("name", "type", "numbers", "bytes", "sharding", "mean", "std", "NaNs", "infs", "note"),
            [_cells(row) for row, _ in self._lines[:_LINES]],
            [*left_out(len(self._lines) - _LINES, ": pass depth=1, or read .rows"), last_line],
            optional=("sharding", "mean", "std", "NaNs", "infs", "note"),
            highlighted={i for i, (_, is_row) in enumerate(self._lines) if not is_row},
        )


def _cells(row: Row) -> tuple[str, ...]:
    size = describe_bytes(row.bytes).removesuffix(" bytes")
    sizes = (f"{row.numbers:,}" if row.numbers else "", size if row.bytes else "")
    sharding = "" if row.sharding is None else str(getattr(row.sharding, "spec", row.sharding))
    return (row.name or "(root)", row.type, *sizes, sharding, *_stats_cells(row), row.note)


def _stats_cells(row: Row) -> Iterator[str]:
    for value in (row.mean, row.std):
        yield "" if value is None else f"{value:.3g}"
    for number in (row.nans, row.infs):
        yield "" if number is None else f"{number:,}"


def tree_summary(tree: PyTree, *, depth: int | None = None, stats: bool = False) -> TreeSummary:
    """Return a table of what is in a tree: names, shapes, dtypes, sizes, and how the arrays are sharded.

    Args:
        tree: any pytree; its leaves may be `jax.ShapeDtypeStruct`, or traced.
        depth: the number of parts of the names that are shown: with 1, each child of the tree has one row. By default,
            each leaf has one.
        stats: also compute mean, standard deviation and the number of NaNs and infinities of each array, on its
            devices. The first call compiles a program for each shape.

    Returns:
        The table, which `show()` prints. Read it in programs by its `rows`, `subtrees` and `total`.

    Raises:
        ValueError: `depth` is negative.
        TypeError: `depth` is neither an integer nor None, or `tree` is a class.

    >>> import jax.numpy as jnp
    >>> tree_summary({"layers": [{"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}], "scale": jnp.ones(())})
    name        type      numbers  bytes
    layers      list      9        36
    layers.0    dict      9        36
    layers.0.b  f32[3]    3        12
    layers.0.w  f32[2,3]  6        24
    scale       f32[]     1        4
    dict: 3 leaves, 10 numbers, 40 bytes
    >>> [row.name for row in tree_summary({"a": {"w": 1}, "b": 2}, depth=1).rows]
    ['a', 'b']
    """
    refuse_class(tree, "tree_summary")
    if not (depth is None or hasattr(depth, "__index__")):
        raise TypeError(f"depth must be an int or None, found {describe_value(depth)}")
    if depth is not None and operator.index(depth) < 0:
        raise ValueError(f"depth must not be negative, found {depth}")
    named, lines = _lines_of(tree, depth)
    values = [x for _, x in named]
    leaves = [_leaf(name, x) for name, x in named]
    if stats:
        leaves = [leaf._replace(**measured) for leaf, measured in zip(leaves, measure(values), strict=True)]
    leaves = _with_notes(leaves, values)

    shown: list[tuple[Row, bool]] = []
    for line in lines:
        inside = [leaves[i] for i in line.leaves]
        shown.append((inside[0] if line.is_leaf else _total(line.name, line.type, inside), line.is_row))
    return TreeSummary(
        rows=tuple(row for row, is_row in shown if is_row),
        subtrees=tuple(row for row, is_row in shown if not is_row),
        total=leaves[0] if jtu.all_leaves([tree]) else _total("", type(tree).__qualname__, leaves),
        _lines=tuple(shown),
        _stats=stats,
    )


class _Line(NamedTuple):
    """A line of the table.

    Attributes:
        name: the name of a leaf or a subtree.
        type: the class of a subtree; "" for a leaf, whose row says what it is.
        level: its level, 0 for the root.
        is_row: whether it is one of the `rows`, and not a subtree above them.
        leaves: the indices of the leaves in it.
    """

    name: str
    type: str
    level: int
    is_row: bool
    leaves: list[int]

    @property
    def is_leaf(self) -> bool:
        """Whether it is the line of a leaf."""
        return self.type == ""


def _lines_of(tree: PyTree, depth: int | None) -> tuple[list[tuple[str, Any]], list[_Line]]:
    """Return the leaves of a tree by name, and the lines of its table, in the order of the tree."""
    leaves: list[tuple[str, Any]] = []
    lines: list[_Line] = []
    around: list[_Line] = []  # the line of x, if it has one, and those of the nodes that it is in
    for name, x, level in _walk(tree):
        while around and around[-1].level >= level:
            around.pop()
        is_leaf = jtu.all_leaves([x])
        is_shown_node = (
            not is_variable(x)  # which has the name of its value, and the line of that
            and (level > 0 or depth == 0)  # of the root, the last line of the table says the same
        )
        if (is_leaf or is_shown_node) and (depth is None or level <= depth):
            kind = "" if is_leaf else type(x).__qualname__
            line = _Line(name, kind, level, is_row=is_leaf or level == depth, leaves=[])
            lines.append(line)
            around.append(line)
        if is_leaf:
            for line in around:
                line.leaves.append(len(leaves))
            leaves.append((name, x))
    return leaves, [line for line in lines if line.leaves]


def _walk(tree: PyTree) -> Iterator[tuple[str, Any, int]]:
    """Yield each node and leaf with its name and its level, a node before what is in it."""
    todo: list[tuple[str, Any, int]] = [("", tree, 0)]
    while todo:
        start, x, level = todo.pop()
        if level > sys.getrecursionlimit():  # JAX has about the same limit
            where = shortened(start[:-1], _WIDTH)
            raise RecursionError(f"the tree has more than {level - 1:,} levels, or contains itself, at {where}")
        yield start[:-1], x, level
        below = level + (not is_variable(x))
        todo += reversed([(start_below(start, key), child, below) for key, child in keyed_children(x)])


def _leaf(name: str, x: Any) -> Row:
    is_array = has_dtype(x) or is_ref(x)
    array: Any = x  # to type checkers
    dtype: Any = array.dtype if is_array else dtype_of(array)
    described = describe(x) if dtype is not None else shortened(describe_value(x), _WIDTH)
    if is_ref(x):
        described = describe(untyped.ShapeDtypeStruct(array.shape, dtype)) + " (Ref)"
    return Row(
        name=name,
        type=described,
        shape=tuple(array.shape) if is_array else None,
        dtype=None if dtype is None else str(dtype),
        leaves=1,
        numbers=math.prod(array.shape) if is_array and is_number(dtype) else 0,
        bytes=math.prod(array.shape) * array.dtype.itemsize if is_array else 0,
        sharding=_sharding(x) if is_array else None,
    )


def _total(name: str, kind: str, leaves: Sequence[Row]) -> Row:
    """Return the row of a subtree."""
    dtypes = dict.fromkeys(leaf.dtype for leaf in leaves if leaf.shape is not None and leaf.dtype is not None)
    shardings = [leaf.sharding for leaf in leaves if leaf.shape is not None]
    is_one = bool(shardings) and all(sharding == shardings[0] for sharding in shardings)
    row = Row(
        name=name,
        type=kind,
        shape=None,
        dtype=", ".join(dtypes) or None,
        leaves=len(leaves),
        numbers=sum(leaf.numbers for leaf in leaves),
        bytes=sum(leaf.bytes for leaf in leaves),
        sharding=shardings[0] if is_one else None,
    )
    return row._replace(**together(leaves))


def _with_notes(rows: list[Row], leaves: list[Any]) -> list[Row]:
    """Say which leaves have a name in common, which are one array, and which are objects."""
    first: dict[int, Row] = {}
    names = Counter(row.name for row in rows)
    out: list[Row] = []
    for row, x in zip(rows, leaves, strict=True):
        notes = [f"{count(names[row.name], 'leaf', 'leaves')} of this name"] if names[row.name] > 1 else []
        if isinstance(x, ARRAYS) and first.setdefault(id(x), row) is not row:
            notes.append(f"the same array as {first[id(x)].name}")
        if _is_object(x):
            notes.append("not a node: never trained")
        out.append(row._replace(note="; ".join(notes)) if notes else row)
    return out


def _is_object(x: object) -> bool:
    """Whether a leaf is an instance of a class that is not registered, and may have arrays that JAX does not see."""
    return not (has_dtype(x) or is_parameter(x) or isinstance(x, _KNOWN) or describe_function(x))


_KNOWN: Any = (str, bytes, type, enum.Enum, types.BuiltinFunctionType, functools.partial)


def _sharding(x: Any) -> Any:
    """Return the sharding of an array over several devices, or None."""
    sharding = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
    return sharding if sharding is not None and sharding.num_devices > 1 else None
