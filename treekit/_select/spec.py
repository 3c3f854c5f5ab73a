"""Resolve arguments that are a tree, or a function from the params to one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.predicates import can_be_trained, is_parameter, is_traced, is_truly_callable
from treekit._base.tree import is_none, or_leaf
from treekit._base.types import KeyPath, PyTree
from treekit._compare.prefix import FittedPrefix, fit_prefix
from treekit._names.key_path import flatten_with_path, path_text
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_error, type_name


def resolve_spec(spec: object, tree: PyTree, *, is_spec_leaf: Callable[[Any], bool], name: str) -> Any:
    """Return `spec` if it is a tree, such as a mask; if it is a function of the params, return its result.

    The first row that holds:

    | | `spec` | what happens |
    |---|---|---|
    | 1 | a class | an error says what to pass instead |
    | 2 | a function that is not a node | it is called |
    | 3 | any other object that fits the params | it is returned, callable or not |
    | 4 | a node that wraps a function, or whose leaves, if any, are all callable | it is called |
    | 5 | a callable node with a leaf that is not a spec leaf | it is called |
    | 6 | any other | an error says where it does not fit |

    A prefix tree of the params fits. Each of its leaves applies to the whole subtree below it. Mappings fit by their
    keys, whatever their classes, and get those of the params; a variable of Flax fits as its value. What is called
    receives the params, in which leaves that cannot be parameters are None.

    Leaves of the params that cannot be parameters (functions, strings, keys, objects) do not count in comparing: a mask
    made from a filtered model fits the raw one, and the reverse.

    Args:
        spec: a tree, or a function from the params to a tree.
        tree: the params.
        is_spec_leaf: whether an object, which may be a node, is a leaf of a spec, as a bool is of a mask.
        name: what the caller calls the argument, for errors.

    Returns:
        `spec`, or its result: a prefix tree of `tree`.

    Raises:
        ValueError: `spec` does not fit `tree` (the message names the argument and the first key path that differs), or
            is a predicate on leaves, which returns one value for the tree and another for a leaf.

    >>> import jax
    >>> params = {"w": jax.numpy.ones((2, 2)), "b": jax.numpy.ones(2)}
    >>> is_bool = lambda leaf: isinstance(leaf, bool)
    >>> resolve_spec(lambda p: {"w": True, "b": False}, params, is_spec_leaf=is_bool, name="mask")
    {'w': True, 'b': False}
    """
    return fit_spec(spec, jtu.tree_map(_parameter_or_none, tree), Argument(name, is_spec_leaf)).prefix


def _parameter_or_none(x: object) -> Any:
    return x if is_parameter(x) else None


class Argument(NamedTuple):
    """An argument that takes a spec.

    Attributes:
        name: what the caller calls it, for errors.
        is_spec_leaf: whether an object, which may be a node, is a leaf of it, as a bool is of a mask.
        hint: what the error of a spec that does not fit says at its end.
    """

    name: str
    is_spec_leaf: Callable[[Any], bool]
    hint: str = ""


def fit_spec(spec: Any, params: PyTree, argument: Argument, *, asked: PyTree = None, refusal: str = "") -> FittedPrefix:
    """Do what the table of `resolve_spec` says, for params in which non-parameters are already None.

    Args:
        spec: as in `resolve_spec`.
        params: the params.
        argument: the argument that it is for.
        asked: what a function is called with, of the structure of the params; by default, the params.
        refusal: why a function cannot be called, as the end of a sentence; "" if it can.

    Returns:
        The spec, or its result, fitted to the params.

    Raises:
        ValueError: the spec does not fit, a function raises an error, or it cannot be called.
    """
    name = argument.name
    if isinstance(spec, type):  # row 1
        raise ValueError(
            f"{name} is the class {spec.__qualname__}. To select its instances, use treekit.path_mask, or path_labels "
            "for labels and rates"
        )
    is_function = callable(spec) and jtu.all_leaves([spec])
    if not is_function:
        try:
            return _fit_tree(spec, params, argument)  # row 3
        except ValueError:
            if not _may_be_called(spec, argument.is_spec_leaf):
                raise  # row 6
    if refusal:  # rows 2, 4 and 5: it is called
        raise ValueError(f"the function given as {name} {refusal}")
    asked = params if asked is None else asked
    try:
        result = spec(asked)
    except Exception as error:
        if isinstance(spec, TreeSpec):  # a mask of treekit, whose own errors say what is wrong with it
            raise
        raise _error_of_function(error, asked, name) from error
    fitted = _fit_tree(result, params, argument._replace(name=f"{name}(params)"))
    _refuse_leaf_predicate(spec, result, asked, argument)
    return fitted


def _fit_tree(spec: object, tree: PyTree, argument: Argument) -> FittedPrefix:
    """Fit a spec that is a tree, in which None is allowed for what cannot be trained, as in a filtered model.

    Raises:
        ValueError: it is not a prefix of the tree; the message names the first key path that differs.
    """
    name, is_spec_leaf, hint = argument
    try:
        fitted = fit_prefix(name, spec, tree, or_leaf(is_spec_leaf, is_none))
    except ValueError as error:
        raise ValueError(f"{error}{hint}") from None
    for i, (leaf, part) in enumerate(fitted.pairs):
        if leaf is None and not is_spec_leaf(None) and any(map(can_be_trained, jtu.tree_leaves(part))):
            raise ValueError(
                f"{name} does not fit the tree it is for: at key path {path_text(fitted.path(i), name)} it has None, "
                f"and the tree it is for {type_name(part)}{hint}"
            )
    return fitted


def _may_be_called(spec: Any, is_spec_leaf: Callable[[Any], bool]) -> bool:
    """Whether a node that does not fit is called: rows 4 and 5."""
    is_of_spec_leaves = all(map(is_spec_leaf, jtu.tree_leaves(spec, is_leaf=is_spec_leaf)))
    return is_truly_callable(spec) or (callable(spec) and not is_of_spec_leaves)


def _error_of_function(error: Exception, params: PyTree, name: str) -> ValueError:
    of_one_leaf = "; of a function of one leaf, treekit.leaf_mask(f) makes a mask" if "mask" in name else ""
    return ValueError(
        f"the function given as {name} raised {describe_error(error)}. It is called with all of the params (here "
        f"{type(params).__name__}), and returns a tree: {name}=lambda params: jax.tree.map(f, params){of_one_leaf}"
    )


def _refuse_leaf_predicate(spec: Callable[[Any], Any], result: object, params: PyTree, argument: Argument) -> None:
    """Raise a ValueError if a function answers for one leaf: it has one answer for the tree, and another for a leaf.

    Its answer for the whole tree, such as False since a model is not an array, would silently apply to every leaf.
    """
    name, is_spec_leaf, _ = argument
    if result is None or not is_spec_leaf(result) or jtu.all_leaves([params]):
        return
    leaves = flatten_with_path(params)[0]
    kinds: dict[Any, tuple[KeyPath, Any]] = {_kind(x): (path, x) for path, x in leaves}
    for path, leaf in kinds.values():
        try:
            answer = spec(leaf)
        except Exception:  # a function of the tree may raise anything for a leaf
            return
        if is_traced(answer) or is_traced(result):
            return
        if is_spec_leaf(answer) and answer is not None and bool(answer != result):
            is_mask = isinstance(answer, bool)
            written = "treekit.leaf_mask(predicate)" if is_mask else "lambda params: jax.tree.map(predicate, params)"
            raise ValueError(
                f"the function given as {name} is a predicate on leaves: it returned {result!r} for all of the params "
                f"(here {type(params).__name__}), and {answer!r} for the leaf at {path_text(path)}. "
                f"{name} is called with all of the params. Write "
                f"{name}={written}, or select by key path, with treekit.path_mask or treekit.path_labels"
            )


def _kind(leaf: Any) -> Any:
    """What a predicate depends on, so that it is not asked about thousands of leaves that are alike."""
    return type(leaf), np.shape(leaf), dtype_of(leaf)
