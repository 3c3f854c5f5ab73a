"""tree_diff: every difference between two trees, each with its key path."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from treekit._dtype import dtype_of, is_weak
from treekit._filter import is_array
from treekit._jax import jnp, jtu

Kind = Literal[
    "type", "structure", "static value", "array against None", "shape", "dtype", "weak type", "value",
]  # fmt: skip


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
    """The differences between two trees, empty and false where there is none; `str()` is a table for people."""

    def __str__(self) -> str:
        if not self:
            return "no difference"
        rows = [(d.path or "(root)", d.kind, f"{d.left} | {d.right}") for d in self]
        path, kind = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(f"{p:<{path}}  {k:<{kind}}  {sides}" for p, k, sides in rows)


def tree_diff(a: Any, b: Any, *, values: bool = True, rtol: float = 0.0, atol: float = 0.0) -> TreeDiff:
    """Every difference between two trees: containers, keys, static values, shapes, dtypes, weak types, values.

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


@dataclasses.dataclass(frozen=True)
class _Values:
    compare: bool
    rtol: float
    atol: float

    def differ(self, a: Any, b: Any) -> bool:
        if not self.compare:
            return False
        if dtype_of(a) is None:
            return not _equal(a, b)
        if _abstract(a) or _abstract(b):
            return False
        if jnp.issubdtype(dtype_of(a), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        if not jnp.issubdtype(a.dtype, np.inexact):
            return not bool(np.array_equal(a, b))
        wide = np.complex128 if jnp.issubdtype(a.dtype, np.complexfloating) else np.float64  # NumPy has no bf16
        return not bool(np.allclose(a.astype(wide), b.astype(wide), self.rtol, self.atol, equal_nan=True))


def _walk(path: tuple[Any, ...], a: Any, b: Any, values: _Values) -> Iterator[Difference]:
    def differ(kind: Kind, left: str, right: str) -> Difference:
        return Difference(jtu.keystr(path), kind, left, right)

    a_leaf, b_leaf = _is_leaf(a), _is_leaf(b)
    if a_leaf and b_leaf:
        yield from (differ(kind, left, right) for kind, left, right in _leaf_differences(a, b, values))
    elif (a is None and dtype_of(b) is not None) or (b is None and dtype_of(a) is not None):
        yield differ("array against None", _describe(a), _describe(b))
    elif a_leaf or b_leaf or type(a) is not type(b):
        yield differ("type", *_two_types(a, b))
    else:
        a_children, b_children = _children(a), _children(b)
        if a_children.keys() != b_children.keys():
            yield differ("structure", _keys(a_children), _keys(b_children))
        elif _static(a) != _static(b):
            yield from (
                Difference(jtu.keystr(path) + name, "static value", left, right)
                for name, left, right in _static_differences(a, b, a_children)
            )
        for key in a_children.keys() & b_children.keys() if a_children.keys() != b_children.keys() else a_children:
            yield from _walk((*path, key), a_children[key], b_children[key], values)


def _leaf_differences(a: Any, b: Any, values: _Values) -> Iterator[tuple[Kind, str, str]]:
    left, right = _describe(a), _describe(b)
    a_dtype, b_dtype = dtype_of(a), dtype_of(b)
    if (a_dtype is None) != (b_dtype is None) or (a_dtype is None and type(a) is not type(b)):
        yield "type", *_two_types(a, b)
        return
    same = True
    if a_dtype is not None:
        if np.shape(a) != np.shape(b):
            same = False
            yield "shape", left, right
        if a_dtype != b_dtype:
            same = False
            yield "dtype", left, right
        elif is_weak(a) != is_weak(b):
            yield "weak type", f"{_strength(a)} {left}", f"{_strength(b)} {right}"
    if same and values.differ(a, b):
        yield "value", _show_value(a), _show_value(b)


def _strength(x: Any) -> str:
    return "weak" if is_weak(x) else "strong"


def _is_leaf(x: Any) -> bool:
    return jtu.all_leaves([x])


def _children(x: Any) -> dict[Any, Any]:
    """The children of a node, by key."""
    return {path[0]: child for path, child in jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]}


def _static(x: Any) -> Any:
    data = jtu.tree_structure(x, is_leaf=lambda y: y is not x).node_data()
    return None if data is None else data[1]


def _static_differences(a: Any, b: Any, children: dict[Any, Any]) -> Iterator[tuple[str, str, str]]:
    """Where a class names its fields, the fields that differ; else the whole static part."""
    dynamic = {getattr(key, "name", None) for key in children}
    names = [f.name for f in dataclasses.fields(a)] if dataclasses.is_dataclass(a) else []
    found = [
        (f".{name}", _show_value(x), _show_value(y))
        for name in names
        if name not in dynamic
        for x, y in [(getattr(a, name, None), getattr(b, name, None))]
        if type(x) is not type(y) or not _equal(x, y)
    ]
    yield from found or [("", _show_value(_static(a)), _show_value(_static(b)))]


def _equal(a: Any, b: Any) -> bool:
    """`a == b`, where an object may refuse to say."""
    try:
        return a is b or bool(a == b)
    except Exception:  # a user's __eq__ may raise anything; what cannot be compared is not the same
        return False


def _abstract(x: Any) -> bool:
    return isinstance(x, (Tracer, jax.ShapeDtypeStruct))


def _describe(x: Any) -> str:
    """`f32[2,3]` for an array, the value of a number, the type of anything else."""
    dtype = dtype_of(x)
    if dtype is None:
        return "None" if x is None else type(x).__name__
    if not (is_array(x) or isinstance(x, jax.ShapeDtypeStruct)):
        return f"{type(x).__name__} {x!r}"
    name = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        if name.startswith(long):
            name = short + name.removeprefix(long)
            break
    numpy = "" if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)) else "(numpy)"
    return f"{name}[{','.join(map(str, x.shape))}]{numpy}"


def _show_value(x: Any) -> str:
    text = " ".join(repr(x).split()) if not is_array(x) else " ".join(str(x).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _two_types(a: Any, b: Any) -> tuple[str, str]:
    """The names of two types, by module where they would read the same, and by id where that would too."""
    for name in (_type_name, _full_type_name):
        if name(a) != name(b):
            return name(a), name(b)
    return _full_type_name(a, with_id=True), _full_type_name(b, with_id=True)


def _type_name(x: Any) -> str:
    return _describe(x) if dtype_of(x) is not None or x is None else type(x).__qualname__


def _full_type_name(x: object, with_id: bool = False) -> str:
    cls = type(x)
    return f"{cls.__module__}.{cls.__qualname__}" + (f" at {id(cls):#x}" if with_id else "")


def _keys(children: dict[Any, Any]) -> str:
    names = ", ".join(jtu.keystr((key,)) for key in children)
    return f"{len(children)} children: {names}" if children else "no children"
