"""Filter the leaves of a tree, split a tree by them, and combine it again."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.predicates import is_array, is_traced
from treekit._base.tree import is_mapping, is_none, numbered, or_leaf
from treekit._base.types import FilterSpec, LeafPredicate, PyTree, PyTreeDef
from treekit._compare.prefix import FittedPrefix, fit_prefix, flatten_up_to_each
from treekit._names.key_path import leaf_path_text, path_text
from treekit._select.tree_spec import TreeSpec
from treekit._text.arguments import check_bool
from treekit._text.describe import describe, describe_error, describe_value

T = TypeVar("T")


def filter(
    tree: T,
    filter_spec: FilterSpec,
    inverse: bool = False,
    replace: object = None,
    is_leaf: LeafPredicate | None = None,
) -> T:
    """Keep the leaves that satisfy a condition, and replace the others by None.

    To train only some leaves of a model, wrap the optimizer in `treekit.optax.selective_transform` instead.

    Args:
        tree: any pytree.
        filter_spec: a predicate on leaves, a mask function (`path_mask`, `leaf_mask`, `trainable`), or a prefix tree of
            `tree` whose leaves are bools or one of these.
        inverse: keep the leaves that fail instead.
        replace: the replacement for leaves that are not kept.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        A tree with the classes and containers of `tree`.

    Raises:
        ValueError: `filter_spec` is not a prefix tree of `tree`, one of its leaves is neither a bool nor a predicate,
            or a predicate raises an error or returns neither a bool nor an int; the message names the key path.
        TypeError: `inverse` is not a bool.

    Source: the contract of `equinox.filter`.

    >>> import jax.numpy as jnp
    >>> filter({"w": jnp.ones(2), "name": "a"}, is_array)
    {'name': None, 'w': Array([1., 1.], dtype=float32)}
    >>> filter({"w": 1, "b": {"x": 2, "y": 3}}, {"w": False, "b": True})
    {'b': {'x': 2, 'y': 3}, 'w': None}
    """
    check_bool("inverse", inverse)
    keep, leaves, treedef = _decide(filter_spec, tree, is_leaf)
    out: T = treedef.unflatten([x if k != inverse else replace for k, x in zip(keep, leaves, strict=True)])
    return out


def filter_arrays(tree: T) -> T:
    """Keep the arrays of a tree, and replace every other leaf by None: `filter(tree, is_array)`.

    Args:
        tree: any pytree.

    Returns:
        A tree with the classes and containers of `tree`, whose leaves are all arrays.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> filter_arrays([jnp.ones(2), 1.0, jax.nn.relu])
    [Array([1., 1.], dtype=float32), None, None]
    """
    return filter(tree, is_array)


def partition(
    tree: T, filter_spec: FilterSpec = is_array, replace: object = None, is_leaf: LeafPredicate | None = None
) -> tuple[T, T]:
    """Split a tree in two: the leaves that satisfy a condition, and the others. `combine` is the inverse.

    `treekit.optax.partition` is another function: it gives each leaf to the transformation with its label.

    Args:
        tree: any pytree.
        filter_spec: as in `filter`; by default, the first tree has the arrays and the second everything else.
        replace: the placeholder in each tree for the leaves of the other.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        Two trees with the classes and containers of `tree`.

    Raises:
        ValueError: as in `filter`.

    Source: the contract of `equinox.partition`.

    >>> partition([1, 2.5], lambda x: isinstance(x, int))
    ([1, None], [None, 2.5])
    """
    try:
        keep, leaves, treedef = _decide(filter_spec, tree, is_leaf)
    except ValueError as error:
        if is_mapping(tree) and any(hasattr(x, "init") and hasattr(x, "update") for x in tree.values()):
            error.add_note("The tree has gradient transformations: did you mean treekit.optax.partition?")
        raise
    left: T = treedef.unflatten([x if k else replace for k, x in zip(keep, leaves, strict=True)])
    right: T = treedef.unflatten([replace if k else x for k, x in zip(keep, leaves, strict=True)])
    return left, right


def combine(tree: T, *rest: T, is_leaf: LeafPredicate | None = None) -> T:
    """Combine trees that `partition` has split: each leaf is the first value that is not None.

    Args:
        tree: a pytree.
        *rest: trees of the same structure, where None counts as a leaf.
        is_leaf: as in `jax.tree.flatten`.

    Returns:
        A tree of the structure of `tree`.

    Raises:
        ValueError: the trees differ in structure.
        TypeError: the only argument is the pair that `partition` returns: write `combine(*pair)`.

    Source: the contract of `equinox.combine`.

    >>> combine([None, 1, 2], [0, None, None])
    [0, 1, 2]
    """
    stop = or_leaf(is_leaf, is_none)
    if not rest and _are_parts(tree, stop):
        raise TypeError(
            "combine takes each part of a tree as an argument, found a tuple of them: write combine(*parts)"
        )
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    for others in flatten_up_to_each(treedef, rest):
        leaves = [y if x is None else x for x, y in zip(leaves, others, strict=True)]
    out: T = treedef.unflatten(leaves)
    return out


def _are_parts(tree: PyTree, is_leaf: LeafPredicate) -> bool:
    """Whether a tree is a tuple as `partition` returns: of nodes of one structure, with one value for each leaf."""
    kind: type[object] = tree.__class__
    if kind is not tuple or len(tree) < 2:
        return False
    parts = [jtu.tree_flatten(x, is_leaf=is_leaf) for x in tree]
    if len({treedef for _, treedef in parts}) > 1 or jtu.all_leaves(tree, is_leaf):
        return False
    values = [sum(x is not None for x in each) for each in zip(*(leaves for leaves, _ in parts), strict=True)]
    return max(values, default=0) == 1


def _decide(filter_spec: object, tree: PyTree, is_leaf: LeafPredicate | None) -> tuple[list[bool], list[Any], Any]:
    """Return one bool for each leaf, the leaves, and the structure of the tree."""
    fitted = _fit(filter_spec, tree)
    parts = [jtu.tree_flatten(part, is_leaf=is_leaf) for _, part in fitted.pairs]
    if len(parts) == 1 and jtu.all_leaves([fitted.prefix]):  # which is faster than what follows
        treedef = parts[0][1]
    else:
        # That of the tree with `is_leaf`, which does not hold for the nodes above the parts.
        treedef = jtu.tree_structure(fitted.treedef.unflatten(numbered(part_def)[0] for _, part_def in parts))
    all_leaves = [x for leaves, _ in parts for x in leaves]
    keep: list[bool] = []
    for (spec, part), (leaves, _) in zip(fitted.pairs, parts, strict=True):
        start = len(keep)
        if isinstance(spec, TreeSpec):
            keep += [
                check_answer(x, start + i, all_leaves, treedef) for i, x in enumerate(spec.of_leaves(part, is_leaf))
            ]
        elif callable(spec):
            predicate: Any = spec
            keep += [ask("filter_spec", predicate, start + i, all_leaves, treedef) for i in range(len(leaves))]
        else:
            keep += [bool(spec)] * len(leaves)
    return keep, all_leaves, treedef


def _fit(filter_spec: object, tree: PyTree) -> FittedPrefix:
    """Fit a `filter_spec` to a tree.

    Raises:
        ValueError: it is not a prefix of the tree, or has a leaf that is neither a bool nor a predicate.
    """
    if isinstance(filter_spec, type):
        raise ValueError(
            f"filter_spec is the class {filter_spec.__qualname__}. To keep the leaves in its instances, pass "
            f"treekit.path_mask({filter_spec.__name__})"
        )
    try:
        fitted = fit_prefix("filter_spec", filter_spec, tree)
    except ValueError as error:
        if isinstance(filter_spec, jax.tree_util.Partial):  # a predicate that happens to be a node
            return _fit(filter_spec.__call__, tree)
        raise ValueError(f"{error}{_order(tree)}") from None
    for i, (spec, _) in enumerate(fitted.pairs):
        if not (type(spec) in _BOOLS or callable(spec)):
            hint = ". To select by key path, use treekit.path_mask" if isinstance(spec, str) else _order(tree)
            raise ValueError(
                "filter_spec may contain only bools and predicates on leaves, found "
                f"{describe_value(spec)} at {path_text(fitted.path(i))}{hint}"
            )
    return fitted


_BOOLS = (bool, np.bool_)


def _order(tree: PyTree) -> str:
    """Say for an error what the arguments are, if the tree looks like a `filter_spec`."""
    leaves = jtu.tree_leaves(tree)
    are_specs = bool(leaves) and all(type(x) in _BOOLS or callable(x) for x in leaves)
    return ". The arguments are (tree, filter_spec): are they in the right order?" if are_specs else ""


def ask(name: str, predicate: LeafPredicate, i: int, leaves: Sequence[Any], treedef: PyTreeDef) -> bool:
    """Return the answer of a predicate for the i-th leaf of a tree.

    Raises:
        ValueError: the predicate raised an error, or its answer is not a bool; the message names it and the key path.
    """
    try:
        answer = predicate(leaves[i])
    except Exception as error:
        every = "every leaf, functions and numbers too: let it begin with `treekit.is_array(leaf) and`"
        raise ValueError(
            f"{name} raised an error for {_place(i, leaves, treedef)}: {describe_error(error)}. A predicate is called "
            f"with {'every array' if name == 'leaf_mask' else every}"
        ) from error
    return answer if type(answer) is bool else check_answer(answer, i, leaves, treedef)


def check_answer(answer: Any, i: int, leaves: Sequence[Any], treedef: PyTreeDef) -> bool:
    """Return an answer for the i-th leaf as a bool; raise a ValueError if it is something else."""
    is_known = isinstance(answer, int) or (dtype_of(answer) == np.bool_ and np.shape(answer) == ())
    if is_traced(answer) or not is_known:
        found = "a traced array, whose value is not known," if is_traced(answer) else describe(answer)
        raise ValueError(
            f"a predicate must return a bool for each leaf, found {found} for {_place(i, leaves, treedef)}. A function "
            "of the whole tree is not a predicate: call it and pass the tree of bools that it returns, or use "
            "treekit.path_mask"
        )
    return bool(answer)


def _place(i: int, leaves: Sequence[Any], treedef: PyTreeDef) -> str:
    return f"the leaf {leaf_path_text(numbered(treedef)[0], i)} ({describe(leaves[i])})"
