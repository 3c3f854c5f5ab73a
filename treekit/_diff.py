"""tree_diff: every difference between two trees, each with its key path."""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treekit._describe import describe, describe_keys, describe_types, describe_values, is_deleted
from treekit._dtype import dtype_of, is_weak
from treekit._jax import jnp, jtu
from treekit._static import exact

Kind = Literal[
    "type", "structure", "static value", "array against None", "shape", "dtype", "weak type", "sharding", "value",
]  # fmt: skip

_ROWS = 50  # that str() has at most
_NUMPY: Any = (np.ndarray, np.generic)
_ARRAYS: Any = (jax.Array, np.ndarray)
_PLAIN = (float, int, bool, str, complex)
_RESET, _YELLOW, _RED, _GREEN = "\033[0m", "\033[33m", "\033[31m", "\033[32m"


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
        print(self._table(in_colours()))

    def _table(self, colours: bool) -> str:
        return as_table([(d.path or "(root)", d.kind, d.left, d.right) for d in self], colours) or "no difference"


def as_table(rows: Sequence[tuple[str, str, str, str]], colours: bool) -> str:
    """Rows of a path, a kind, and what there is on the left and on the right, for people; cut after fifty."""
    yellow, red, green, plain = (_YELLOW, _RED, _GREEN, _RESET) if colours else [""] * 4
    shown = [(path, kind, f"{red}{left}{plain} | {green}{right}{plain}") for path, kind, left, right in rows[:_ROWS]]
    path, kind = (max((len(row[i]) for row in shown), default=0) for i in (0, 1))
    lines = [f"{p:<{path}}  {yellow}{k:<{kind}}{plain}  {sides}" for p, k, sides in shown]
    if len(rows) > _ROWS:
        kinds = Counter(kind for _, kind, _, _ in rows[_ROWS:])
        counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
        lines.append(f"… and {len(rows) - _ROWS} more: {counts}")
    return "\n".join(lines)


def in_colours() -> bool:
    """Whether what is printed goes to a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def tree_diff(a: Any, b: Any, *, values: bool = True, rtol: float = 0.0, atol: float = 0.0) -> TreeDiff:
    """Every difference between two trees, the first and the last.

    The kinds are: "type" (of a leaf or a node; two classes of one name are told apart), "structure" (other keys, or
    another number of children), "static value", "array against None", "shape", "dtype", "weak type", "sharding" (over
    devices, or another kind of memory) and "value".

    A NumPy array and one of JAX are told apart by what JAX makes of them, as jit does: of f64 it makes f32, unless x64
    is enabled. Two NumPy arrays are told apart by their own dtypes.

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
    return TreeDiff(() if _plainly_equal(a, b) else _walk((), a, b, _Values(values, rtol, atol)))


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
        for key, child in a_children.items():
            if key in b_children and not _plainly_equal(child, b_children[key]):
                yield from _walk((*path, key), child, b_children[key], values)


def _plainly_equal(a: Any, b: Any) -> bool:
    """Whether two objects are one, or equal numbers or NumPy arrays: a shortcut, which says no where more is needed."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _NUMPY):
        return a.dtype == b.dtype and a.dtype.kind in "biufc" and a.shape == b.shape and bool((a == b).all())
    return type(a) in _PLAIN and bool(a == b)


def _leaf_differences(a: Any, b: Any, values: _Values) -> Iterator[tuple[Kind, str, str]]:
    a_dtype, b_dtype = _dtypes(a, b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield "type", *describe_types(a, b)
        return
    if a_dtype is None:
        if values.compare and not _same(a, b):
            yield "value", *describe_values(a, b)
        return
    same_shape = np.shape(a) == np.shape(b)
    if not same_shape:
        yield "shape", describe(a), describe(b)
    if a_dtype != b_dtype:
        yield "dtype", describe(a), describe(b)
    elif is_weak(a) != is_weak(b):
        yield "weak type", f"{_strength(a)} {describe(a)}", f"{_strength(b)} {describe(b)}"
    if same_shape and isinstance(a, jax.Array) and isinstance(b, jax.Array):
        yield from _sharding_differences(a, b)
    if values.compare and same_shape and a_dtype == b_dtype:
        yield from _value_differences(a, b, values)


def _dtypes(a: Any, b: Any) -> tuple[Any, Any]:
    """The dtypes of two leaves: NumPy's own where both are NumPy's, else those that JAX gives them."""
    if isinstance(a, _NUMPY) and isinstance(b, _NUMPY):
        return a.dtype, b.dtype
    return dtype_of(a), dtype_of(b)


def _sharding_differences(a: Any, b: Any) -> Iterator[tuple[Kind, str, str]]:
    """Where two arrays lie, if that is known: not so of tracers."""
    if not (isinstance(a, Tracer) or isinstance(b, Tracer)) and not a.sharding.is_equivalent_to(b.sharding, a.ndim):
        yield "sharding", *describe_values(a.sharding, b.sharding)


def _value_differences(a: Any, b: Any, values: _Values) -> Iterator[tuple[Kind, str, str]]:
    """The first place where two arrays differ, if their values are known."""
    if isinstance(a, (Tracer, jax.ShapeDtypeStruct)) or isinstance(b, (Tracer, jax.ShapeDtypeStruct)):
        return
    if is_deleted(a) or is_deleted(b):
        yield "value", describe(a), describe(b)
        return
    dtype = dtype_of(a)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    inexact = dtype is not None and jnp.issubdtype(dtype, np.inexact)
    if dtype is None:
        differ = _unlike(a, b)
    elif inexact and a.dtype.kind == "V":  # bf16 and its like, which NumPy compares slowly; and equal bits are equal
        differ = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
    else:
        differ = a != b
    differ = np.asarray(differ, bool)
    if inexact and differ.any():
        wide = np.complex128 if jnp.issubdtype(dtype, np.complexfloating) else np.float64  # NumPy knows no bf16
        # Only what differs is widened: of a large array, copies would take many times its memory.
        x, y = a[differ].astype(wide), b[differ].astype(wide)
        differ[differ] = ~np.isclose(x, y, values.rtol, values.atol, equal_nan=True)
    if differ.any():
        place = tuple(map(int, np.unravel_index(differ.argmax(), differ.shape)))
        where = f" at {list(place)}" + (f" and {differ.sum() - 1} more" if differ.sum() > 1 else "") if place else ""
        is_text = a.dtype.kind in "OSTU"
        x, y = describe_values(a.item(place), b.item(place)) if is_text else (str(a[place]), str(b[place]))
        yield "value", x + where, y + where


def _strength(x: Any) -> str:
    return "weak" if is_weak(x) else "strong"


def _children(x: Any) -> dict[Any, Any]:
    """The children of a node, by key; by place where its class gives a key twice."""
    children = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    by_key = {path[0]: child for path, child in children}
    if len(by_key) < len(children):
        return {jax.tree_util.FlattenedIndexKey(i): child for i, (_, child) in enumerate(children)}
    return by_key


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
    """Type-exact equality of two objects that are no leaves with a dtype, though they may hold some."""
    if a is b:
        return True
    if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS):
        return type(a) is type(b) and not tree_diff(a, b)
    try:
        return bool(exact(a) == exact(b))
    except Exception:  # arrays have no truth value, and a user's __eq__ may raise anything
        return type(a) is type(b) and not jtu.all_leaves([a]) and not tree_diff(a, b)


def _not_same(a: Any, b: Any) -> bool:
    return not _same(a, b)


_unlike: Any = np.frompyfunc(_not_same, 2, 1)  # element by element, what JAX has no dtype for: objects, strings, times
