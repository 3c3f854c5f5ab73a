"""Which leaves: predicates on a leaf, and the three verbs that take a tree apart and put it together."""

import abc
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from treekit._dtype import ARRAYS, as_array, dtype_of, stands_for_array
from treekit._jax import jnp, jtu
from treekit._types import FilterSpec, LeafPredicate

if TYPE_CHECKING:
    from typing_extensions import TypeIs
else:  # typing has TypeIs from Python 3.13 on; while running, any special form that takes a type will do
    TypeIs = TypeGuard


T = TypeVar("T")


def is_array(x: object) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.generic]:
    """True for a JAX array, a tracer, a NumPy array or a NumPy scalar; no Python number.

    Args:
        x: any object.

    Returns:
        Whether `x` is an array. Agrees with `equinox.is_array` on every object.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> is_array(jnp.ones(3)), is_array(np.float32(1)), is_array(1.0)
    (True, True, False)
    """
    return isinstance(x, ARRAYS)


def is_inexact_array(
    x: object,
) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.generic]:
    """True for an array that can carry a gradient: floating (bf16 and fp8 too) or complex.

    Args:
        x: any object.

    Returns:
        Whether `x` is an inexact array. Agrees with `equinox.is_inexact_array` on every object.

    >>> import jax.numpy as jnp
    >>> is_inexact_array(jnp.ones(3)), is_inexact_array(jnp.arange(3)), is_inexact_array(1.0)
    (True, False, False)
    """
    if isinstance(x, jax.Array):
        return bool(jnp.issubdtype(x.dtype, jnp.inexact))
    # NumPy's own hierarchy, as Equinox asks it: a NumPy array of an extension dtype (bf16) is not inexact there.
    return is_array(x) and bool(np.issubdtype(x.dtype, np.inexact))


def is_parameter(x: object) -> bool:
    """True for what an optimizer can do arithmetic on, and False for keys, strings and functions.

    These are numeric arrays, Python numbers, and leaves that stand for an array: a `jax.Ref`, or an object with
    `__jax_array__`.
    """
    dtype = dtype_of(x)
    if dtype is None and stands_for_array(x):
        dtype = x.dtype if isinstance(x, jax.Ref) else dtype_of(as_array(x))
    return dtype is not None and (jnp.issubdtype(dtype, np.number) or dtype == np.bool_)


def is_inexact_parameter(x: object) -> bool:
    """True for a parameter that is floating or complex."""
    return is_parameter(x) and bool(jnp.issubdtype(dtype_of(as_array(x)), jnp.inexact))


class TreeSpec(abc.ABC):
    """A function of a whole tree. As a filter_spec it is called once; any other function is asked leaf by leaf."""

    @abc.abstractmethod
    def of_leaves(self, tree: Any, is_leaf: LeafPredicate | None) -> list[Any]:
        """What it says of each leaf, in the order of `jax.tree.leaves`."""


def filter(
    tree: T,
    filter_spec: FilterSpec,
    inverse: bool = False,
    replace: Any = None,
    is_leaf: LeafPredicate | None = None,
) -> T:
    """Keep the leaves that satisfy a condition, and put None in the place of the others.

    Args:
        tree: any pytree.
        filter_spec: a predicate on leaves, a `path_mask`, or a prefix tree of `tree` whose leaves are bools or one of
            these.
        inverse: keep the leaves that fail instead.
        replace: what to put in the place of a leaf that is not kept.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        A tree of the class and containers of `tree`.

    Raises:
        ValueError: `filter_spec` is no prefix of `tree` (the message names the key path), or one of its leaves is
            neither a bool nor a predicate.

    Source: the contract of `equinox.filter`.

    >>> import jax.numpy as jnp
    >>> filter({"w": jnp.ones(2), "name": "a"}, is_array)
    {'name': None, 'w': Array([1., 1.], dtype=float32)}
    >>> filter({"w": 1, "b": {"x": 2, "y": 3}}, {"w": False, "b": True})
    {'b': {'x': 2, 'y': 3}, 'w': None}
    """
    keep, leaves, treedef = _decide(filter_spec, tree, is_leaf)
    out: T = treedef.unflatten([x if k != inverse else replace for k, x in zip(keep, leaves, strict=True)])
    return out


def filter_arrays(tree: T) -> T:
    """Keep the arrays of a tree, and put None in the place of every other leaf: `filter(tree, is_array)`.

    Args:
        tree: any pytree.

    Returns:
        A tree of the class and containers of `tree`; every leaf an array.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> filter_arrays([jnp.ones(2), 1.0, jax.nn.relu])
    [Array([1., 1.], dtype=float32), None, None]
    """
    return filter(tree, is_array)


def partition(
    tree: T,
    filter_spec: FilterSpec = is_array,
    replace: Any = None,
    is_leaf: LeafPredicate | None = None,
) -> tuple[T, T]:
    """Split a tree in two: the leaves that satisfy a condition, and the others; `combine` puts them together.

    Args:
        tree: any pytree.
        filter_spec: as in `filter`; by default, arrays on the left and everything else on the right.
        replace: what stands in each half for a leaf of the other.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        Two trees of the class and containers of `tree`.

    Raises:
        ValueError: as in `filter`.

    Source: the contract of `equinox.partition`.

    >>> partition([1, 2.5], lambda x: isinstance(x, int))
    ([1, None], [None, 2.5])
    """
    keep, leaves, treedef = _decide(filter_spec, tree, is_leaf)
    left: T = treedef.unflatten([x if k else replace for k, x in zip(keep, leaves, strict=True)])
    right: T = treedef.unflatten([replace if k else x for k, x in zip(keep, leaves, strict=True)])
    return left, right


def combine(tree: T, *rest: T, is_leaf: LeafPredicate | None = None) -> T:
    """Put together what `partition` split: at each leaf, the first of the trees' values that is not None.

    Args:
        tree: a pytree.
        *rest: trees of the same structure, None counting as a leaf.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        A tree of the structure of `tree`.

    Raises:
        ValueError: the trees differ in structure.

    Source: the contract of `equinox.combine`.

    >>> combine([None, 1, 2], [0, None, None])
    [0, 1, 2]
    """

    def none_or_leaf(x: Any) -> bool:
        return x is None or (is_leaf is not None and is_leaf(x))

    stop = _is_none if is_leaf is None else none_or_leaf
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    for others in flatten_rest(treedef, rest):
        leaves = [y if x is None else x for x, y in zip(leaves, others, strict=True)]
    out: T = treedef.unflatten(leaves)
    return out


_is_none = functools.partial(operator.is_, None)  # no Python code runs for it, and it is called for every node


def _decide(filter_spec: Any, tree: Any, is_leaf: LeafPredicate | None) -> tuple[list[bool], list[Any], Any]:
    """One bool for each leaf, the leaves, and their structure."""
    if callable(filter_spec) and jtu.all_leaves([filter_spec]):
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
        said = filter_spec.of_leaves(tree, is_leaf) if isinstance(filter_spec, TreeSpec) else map(filter_spec, leaves)
        answers = (x if type(x) is bool else _as_bool(x) for x in said)  # a call takes time
        return _ask(answers, tree, is_leaf), leaves, treedef
    specs, outline = jtu.tree_flatten(filter_spec)
    try:
        subtrees = outline.flatten_up_to(tree)
    except ValueError as error:
        if isinstance(filter_spec, jax.tree_util.Partial):  # a predicate that happens to be a node
            return _decide(filter_spec.__call__, tree, is_leaf)
        raise misfit("filter_spec", outline, tree, error) from None
    parts = [jtu.tree_flatten(part, is_leaf=is_leaf) for part in subtrees]
    answers_below = [
        _decide_part(spec, part, leaves, is_leaf)
        for spec, part, (leaves, _) in zip(specs, subtrees, parts, strict=True)
    ]
    keep = _ask(itertools.chain.from_iterable(answers_below), tree, is_leaf)
    numbered = outline.unflatten([part_def.unflatten(range(len(leaves))) for leaves, part_def in parts])
    return keep, [x for leaves, _ in parts for x in leaves], jtu.tree_structure(numbered)


def _ask(answers: Iterator[bool], tree: Any, is_leaf: LeafPredicate | None) -> list[bool]:
    """The answers for all leaves.

    Raises:
        ValueError: the predicate raised an error; names the key path of the leaf.
    """
    got: list[bool] = []
    try:
        got.extend(answers)
    except Exception as error:
        path, leaf = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0][len(got)]
        where = jtu.keystr(path) or "the root"
        raise ValueError(
            f"filter_spec cannot answer for the leaf {where}, of type {type(leaf).__name__}: {type(error).__name__} "
            f"{error}. A predicate is asked about every leaf, functions and numbers too; begin it with "
            "treekit.is_array(leaf) and"
        ) from error
    return got


def _as_bool(answer: Any) -> bool:
    if isinstance(answer, int) or (dtype_of(answer), np.shape(answer)) == (np.bool_, ()):
        return bool(answer)
    raise ValueError(
        f"a predicate must answer with a bool for each leaf, found {type(answer).__name__}. A function of the whole "
        "tree is not a predicate: call it and give the tree of bools that it returns, or use treekit.path_mask"
    )


def _decide_part(spec: Any, part: Any, leaves: list[Any], is_leaf: LeafPredicate | None) -> Iterator[bool]:
    if isinstance(spec, TreeSpec):
        return map(_as_bool, spec.of_leaves(part, is_leaf))
    return (_decide_leaf(spec, x) for x in leaves)


def _decide_leaf(spec: Any, leaf: Any) -> bool:
    if isinstance(spec, Tracer):
        raise ValueError("filter_spec holds a traced array; which leaves to keep must be known while tracing")
    if type(spec) in (bool, np.bool_):
        return bool(spec)
    if callable(spec):
        return _as_bool(spec(leaf))
    raise ValueError(f"filter_spec must hold bools and predicates on leaves only, found {spec!r}")


def flatten_rest(treedef: Any, rest: Iterable[Any]) -> Iterator[list[Any]]:
    """What stands in other trees where a tree has its leaves; a ValueError that says which of them does not fit."""
    for i, tree in enumerate(rest):
        try:
            yield treedef.flatten_up_to(tree)
        except ValueError as error:
            raise misfit("tree", treedef, tree, error, f"rest[{i}]") from None


def flatten_updates(treedef: Any, updates: Any) -> list[Any]:
    """The updates where the params, of this structure, have leaves; None above some of these is None for each."""
    try:
        parts: list[Any] = treedef.flatten_up_to(updates)
    except ValueError as error:
        params = treedef.unflatten(range(treedef.num_leaves))
        try:
            parts = treedef.flatten_up_to(jtu.tree_map(_spread_none, updates, params, is_leaf=_is_none))
        except ValueError:
            raise misfit("the tree of params", treedef, updates, error, "the updates") from None
    return parts


def _spread_none(x: Any, part: Any) -> Any:
    return jtu.tree_map(_none, part) if x is None else x


def _none(_: Any) -> None:
    return None


def misfit(name: str, outline: Any, tree: Any, error: ValueError, whole: str = "the tree it is for") -> ValueError:
    """Where a prefix called `name`, of the structure `outline`, and a tree part; `error` where JAX finds no place."""
    try:
        jtu.tree_broadcast(outline.unflatten(range(outline.num_leaves)), tree)
    except ValueError as told:
        error = told
    text = str(error).replace("broadcast_prefix prefix_tree", name).replace("the prefix pytree ", "")
    return ValueError(f"{name} does not fit {whole}.\n{text.replace('the full pytree', whole)}")
