"""`tree_diff`: list every difference between two trees, each with its key path."""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, SupportsFloat

from treekit._base.describe import count, describe, describe_keys, describe_types, describe_values, in_columns
from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.tree import children_of
from treekit._base.types import KeyPath
from treekit._diff.leaf_diff import Kind as Kind
from treekit._diff.leaf_diff import fetch, leaf_differences, plainly_equal, same

_ROWS = 50  # in str() at most
_RESET, _YELLOW, _RED, _GREEN = "\033[0m", "\033[33m", "\033[31m", "\033[32m"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between two trees.

    Attributes:
        path: the key path, as `jax.tree_util.keystr` writes it; "" for the root.
        kind: what differs, such as "dtype".
        left: a description of what the first tree has there.
        right: the same for the second tree.
    """

    path: str
    kind: Kind
    left: str
    right: str


class TreeDiff(tuple[Difference, ...]):
    """The differences between two trees: a tuple that is empty if the trees are the same. Its `str()` is a table.

    The table ends after fifty rows with a count of the others; the tuple has all of them.
    """

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table; in a terminal, highlighted, unless the environment variable NO_COLOR is set.

        >>> tree_diff({"w": 1, "b": 2}, {"w": 1, "b": 3}).show()
        ['b']  value  2 | 3
        """
        print(self._table(in_colours()))

    def _table(self, colours: bool) -> str:
        return as_table([(d.path or "(root)", d.kind, d.left, d.right) for d in self], colours) or "no difference"


def as_table(rows: Sequence[tuple[str, str, str, str]], colours: bool) -> str:
    """Align rows of a path, a kind, a left and a right description in columns; at most fifty rows."""
    yellow, red, green, plain = (_YELLOW, _RED, _GREEN, _RESET) if colours else [""] * 4
    lines = in_columns(
        [
            (path, f"{yellow}{kind}{plain}", f"{red}{left}{plain} | {green}{right}{plain}")
            for path, kind, left, right in rows[:_ROWS]
        ]
    )
    if len(rows) > _ROWS:
        kinds = Counter(kind for _, kind, _, _ in rows[_ROWS:])
        counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
        lines.append(f"… and {len(rows) - _ROWS} more: {counts}")
    return "\n".join(lines)


def in_colours() -> bool:
    """Whether the output goes to a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def tree_diff(
    a: object, b: object, *, values: bool = True, rtol: SupportsFloat = 0.0, atol: SupportsFloat = 0.0
) -> TreeDiff:
    """List every difference between two trees.

    The kinds are: "type" (of a leaf or a node, even if two classes have one name), "structure" (other keys, or another
    number of children), "static value", "array against None", "shape", "dtype", "weak type", "sharding" (over devices,
    or another kind of memory) and "value".

    A NumPy array is compared with a JAX array as JAX would convert it, as in jit: f64 becomes f32, unless x64 is
    enabled. Two NumPy arrays are compared by their own dtypes.

    Args:
        a: any pytree.
        b: any pytree.
        values: compare the values of leaves too. Arrays whose values are not known (tracers, ShapeDtypeStructs) are
            compared by shape and dtype only.
        rtol: relative tolerance for inexact values, as in `numpy.isclose`.
        atol: absolute tolerance for inexact values.

    Returns:
        A tuple of `Difference`, in the order of `a`, each with its key path and its kind.

    >>> import numpy as np
    >>> print(tree_diff({"w": np.ones(2), "b": None}, {"w": np.ones(3), "b": np.zeros(2)}))
    ['b']  array against None  None | f64[2](numpy)
    ['w']  shape               f64[2](numpy) | f64[3](numpy)
    """
    found = list(_walk(a, b))
    if values:
        fetch(leaf for x in found if isinstance(x, _Leaves) for leaf in (x.a, x.b))
    options = values, float(rtol), float(atol)
    return TreeDiff(each for x in found for each in (x.differences(*options) if isinstance(x, _Leaves) else [x]))


def assert_trees_same(
    a: object, b: object, *, values: bool = True, rtol: SupportsFloat = 0.0, atol: SupportsFloat = 0.0
) -> None:
    """Raise an AssertionError that lists every difference between two trees.

    Args:
        a: any pytree.
        b: any pytree.
        values: as in `tree_diff`.
        rtol: as in `tree_diff`.
        atol: as in `tree_diff`.

    Raises:
        AssertionError: the trees differ.

    >>> assert_trees_same([1, 2], [1, 3])
    Traceback (most recent call last):
    AssertionError: the trees differ (1 difference, left | right):
    [1]  value  2 | 3
    """
    diff = tree_diff(a, b, values=values, rtol=rtol, atol=atol)
    if diff:
        raise AssertionError(f"the trees differ ({count(len(diff), 'difference')}, left | right):\n{diff}")


class _Leaves(NamedTuple):
    """Two leaves at one place, not compared yet."""

    path: KeyPath
    a: Any
    b: Any

    def differences(self, values: bool, rtol: float, atol: float) -> Iterator[Difference]:
        for found in leaf_differences(self.a, self.b, values, rtol, atol):
            yield Difference(jtu.keystr(self.path), *found)


def _walk(a: object, b: object) -> Iterator[Difference | _Leaves]:
    """Yield the differences between the nodes of two trees, and their leaves, in the order of `a`.

    This is a loop, since trees may be nested more deeply than Python's recursion limit.
    """
    pending: list[tuple[KeyPath, Any, Any]] = [((), a, b)]
    while pending:
        path, a, b = pending.pop()
        if plainly_equal(a, b):
            continue
        a_is_leaf, b_is_leaf = jtu.all_leaves([a]), jtu.all_leaves([b])
        if a_is_leaf and b_is_leaf:
            yield _Leaves(path, a, b)
        elif (a is None and dtype_of(b) is not None) or (b is None and dtype_of(a) is not None):
            yield Difference(jtu.keystr(path), "array against None", describe(a), describe(b))
        elif a_is_leaf or b_is_leaf or type(a) is not type(b):
            yield Difference(jtu.keystr(path), "type", *describe_types(a, b))
        else:
            a_children, b_children = children_of(a), children_of(b)
            yield from _node_differences(path, a, b, a_children, b_children)
            shared = [key for key in a_children if key in b_children]
            pending += [((*path, key), a_children[key], b_children[key]) for key in reversed(shared)]


def _node_differences(
    path: KeyPath, a: object, b: object, a_children: dict[Any, Any], b_children: dict[Any, Any]
) -> Iterator[Difference]:
    """Yield how two nodes of one class differ, apart from their children."""
    if a_children.keys() != b_children.keys():
        yield Difference(jtu.keystr(path), "structure", *describe_keys(a_children, b_children))
        if isinstance(a, dict):  # the static part of a dict is its keys
            return
    for field, sides in _static_differences(a, b, a_children):
        yield Difference(jtu.keystr(path) + field, "static value", *sides)


def _static_differences(a: object, b: object, children: dict[Any, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the fields that differ, if the class has named fields; else the whole static part."""
    a_static, b_static = _static(a), _static(b)
    if same(a_static, b_static):
        return
    dynamic = {getattr(key, "name", None) for key in children}
    names = [f.name for f in dataclasses.fields(a)] if dataclasses.is_dataclass(a) else []
    fields = [(name, getattr(a, name, None), getattr(b, name, None)) for name in names if name not in dynamic]
    found = [(f".{name}", describe_values(x, y)) for name, x, y in fields if not same(x, y)]
    yield from found or [("", describe_values(a_static, b_static))]


def _static(x: object) -> Any:
    data = jtu.tree_structure(x, is_leaf=lambda y: y is not x).node_data()
    return None if data is None else data[1]
