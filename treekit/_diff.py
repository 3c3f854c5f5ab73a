"""tree_diff: every difference between two trees, each with its key path."""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treekit._describe import describe, describe_keys, describe_types, describe_values
from treekit._dtype import dtype_of, is_weak
from treekit._filter import is_array
from treekit._jax import jnp, jtu
from treekit._static import exact

Kind = Literal[
    "type", "structure", "static value", "array against None", "shape", "dtype", "weak type", "sharding", "value",
]  # fmt: skip

_ROWS = 50  # that str() has at most
_PLAIN, _YELLOW, _RED, _GREEN = "\033[0m", "\033[33m", "\033[31m", "\033[32m"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between two trees.

    Attributes:
        path: the key path, as `jax.tree_util.keystr` writes it; "" for the root.
        kind: what differs.
        left: what the first tree has there, in words.
        right: what the second has.
    """

    path: str
    kind: Kind
    left: str
    right: str


class TreeDiff(tuple[Difference, ...]):
    """The differences between two trees, empty and false where there is none; `str()` is a table for people.

    The table is cut after fifty rows, with a count of the others; the tuple has all of them.
    """

    def __str__(self) -> str:
        return self._table(False)

    def show(self) -> None:
        """Print the table, in colours if it goes to a terminal and the environment has no NO_COLOR.

        >>> tree_diff({"w": 1, "b": 2}, {"w": 1, "b": 3}).show()
        ['b']  value  2 | 3
        """
        print(self._table(sys.stdout.isatty() and not os.environ.get("NO_COLOR")))

    def _table(self, colours: bool) -> str:
        if not self:
            return "no difference"
        yellow, red, green, plain = (_YELLOW, _RED, _GREEN, _PLAIN) if colours else [""] * 4
        rows = [(d.path or "(root)", d.kind, f"{red}{d.left}{plain} | {green}{d.right}{plain}") for d in self[:_ROWS]]
        path, kind = (max(len(row[i]) for row in rows) for i in (0, 1))
        lines = [f"{p:<{path}}  {yellow}{k:<{kind}}{plain}  {sides}" for p, k, sides in rows]
        if len(self) > _ROWS:
            kinds = Counter(d.kind for d in self[_ROWS:])
            counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
            lines.append(f"… and {len(self) - _ROWS} more: {counts}")
        return "\n".join(lines)


def tree_diff(a: Any, b: Any, *, values: bool = True, rtol: float = 0.0, atol: float = 0.0) -> TreeDiff:
    """Every difference between two trees, the first and the last.

    The kinds are: "type" (of a leaf or a node; two classes of one name are told apart), "structure" (other keys, or
    another number of children), "static value", "array against None", "shape", "dtype", "weak type", "sharding" (over
    devices, or another kind of memory) and "value".

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
    ['b']  array against None  None | f32[2](numpy)
    ['w']  shape               f32[2](numpy) | f32[3](numpy)
    """
    return TreeDiff(_walk((), a, b, _Values(values, rtol, atol)))


def assert_trees_same(a: Any, b: Any, *, values: bool = True, rtol: float = 0.0, atol: float = 0.0) -> None:
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
        count = f"{len(diff)} difference{'s' if len(diff) > 1 else ''}"
        raise AssertionError(f"the trees differ ({count}, left | right):\n{diff}")


class _Values(NamedTuple):
    """How the values of leaves are compared."""

    compare: bool
    rtol: float
    atol: float


def _walk(path: tuple[Any, ...], a: Any, b: Any, values: _Values) -> Iterator[Difference]:
    def differ(kind: Kind, left: str, right: str, field: str = "") -> Difference:
        return Difference(jtu.keystr(path) + field, kind, left, right)

    a_leaf, b_leaf = jtu.all_leaves([a]), jtu.all_leaves([b])
    if a_leaf and b_leaf:
        yield from (differ(*difference) for difference in _leaf_differences(a, b, values))
    elif (a is None and dtype_of(b) is not None) or (b is None and dtype_of(a) is not None):
        yield differ("array against None", describe(a), describe(b))
    elif a_leaf or b_leaf or type(a) is not type(b):
        yield differ("type", *describe_types(a, b))
    else:
        a_children, b_children = _children(a), _children(b)
        same_keys = a_children.keys() == b_children.keys()
        if not same_keys:
            yield differ("structure", *describe_keys(a_children, b_children))
        if same_keys or not isinstance(a, dict):  # the static part of a dict is its keys
            yield from (differ("static value", *sides, field) for field, sides in _static_differences(a, b, a_children))
        for key in a_children:
            if key in b_children:
                yield from _walk((*path, key), a_children[key], b_children[key], values)


def _leaf_differences(a: Any, b: Any, values: _Values) -> Iterator[tuple[Kind, str, str]]:
    left, right = describe(a), describe(b)
    a_dtype, b_dtype = dtype_of(a), dtype_of(b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield "type", *describe_types(a, b)
        return
    if a_dtype is None:
        if values.compare and not _same(a, b):
            yield "value", *describe_values(a, b)
        return
    same_shape = np.shape(a) == np.shape(b)
    if not same_shape:
        yield "shape", left, right
    if a_dtype != b_dtype:
        yield "dtype", left, right
    elif is_weak(a) != is_weak(b):
        yield "weak type", f"{_strength(a)} {left}", f"{_strength(b)} {right}"
    if same_shape and isinstance(a, jax.Array) and isinstance(b, jax.Array):
        yield from _sharding_differences(a, b)
    if values.compare and same_shape and a_dtype == b_dtype:
        yield from _value_differences(a, b, values)


def _sharding_differences(a: Any, b: Any) -> Iterator[tuple[Kind, str, str]]:
    """Where two arrays lie, if that is known: not so of tracers."""
    if not (isinstance(a, Tracer) or isinstance(b, Tracer)) and not a.sharding.is_equivalent_to(b.sharding, a.ndim):
        yield "sharding", *describe_values(a.sharding, b.sharding)


def _value_differences(a: Any, b: Any, values: _Values) -> Iterator[tuple[Kind, str, str]]:
    """The first place where two arrays differ, if their values are known."""
    if isinstance(a, (Tracer, jax.ShapeDtypeStruct)) or isinstance(b, (Tracer, jax.ShapeDtypeStruct)):
        return
    if jnp.issubdtype(dtype_of(a), jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    if jnp.issubdtype(a.dtype, np.inexact):
        wide = np.complex128 if jnp.issubdtype(a.dtype, np.complexfloating) else np.float64  # NumPy knows no bf16
        close = np.isclose(a.astype(wide), b.astype(wide), values.rtol, values.atol, equal_nan=True)
    else:
        close = np.asarray(a == b)
    if not close.all():
        place = tuple(map(int, np.argwhere(~close)[0]))
        where = f" at {list(place)} (1 of {(~close).sum()})" if place else ""
        yield "value", f"{a[place]}{where}", f"{b[place]}{where}"


def _strength(x: Any) -> str:
    return "weak" if is_weak(x) else "strong"


def _children(x: Any) -> dict[Any, Any]:
    """The children of a node, by key."""
    return {path[0]: child for path, child in jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]}


def _static_differences(a: Any, b: Any, children: dict[Any, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The fields that differ where a class names its fields; else the whole static part."""
    a_static, b_static = _static(a), _static(b)
    if _same(a_static, b_static):
        return
    dynamic = {getattr(key, "name", None) for key in children}
    names = [f.name for f in dataclasses.fields(a)] if dataclasses.is_dataclass(a) else []
    fields = [(name, getattr(a, name, None), getattr(b, name, None)) for name in names if name not in dynamic]
    found = [(f".{name}", describe_values(x, y)) for name, x, y in fields if not _same(x, y)]
    yield from found or [("", describe_values(a_static, b_static))]


def _static(x: Any) -> Any:
    data = jtu.tree_structure(x, is_leaf=lambda y: y is not x).node_data()
    return None if data is None else data[1]


def _same(a: Any, b: Any) -> bool:
    """Type-exact equality of two objects that are no arrays, though they may hold some."""
    if a is b:
        return True
    try:
        return bool(exact(a) == exact(b))
    except Exception:  # arrays have no truth value, and a user's __eq__ may raise anything
        return (type(a) is type(b) and not jtu.all_leaves([a]) and not tree_diff(a, b)) or _same_arrays(a, b)


def _same_arrays(a: Any, b: Any) -> bool:
    return is_array(a) and is_array(b) and a.dtype == b.dtype and bool(np.array_equal(np.asarray(a), np.asarray(b)))
