"""Resolve arguments that are a tree, or a function from the params to one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from treekit._base.dtype import dtype_of
from treekit._base.flax import has_variables, values_of_variables
from treekit._base.jax import jtu
from treekit._base.predicates import can_be_trained, is_parameter, is_traced, is_truly_callable
from treekit._base.types import KeyPath, PyTree, PyTreeDef
from treekit._compare.nodes import mappings_as_in
from treekit._compare.prefix import flatten_up_to, prefix_mismatch
from treekit._names.key_path import flatten_with_path, path_text
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_error, type_name


def resolve_spec(spec: object, tree: PyTree, *, is_spec_leaf: Callable[[Any], bool], name: str) -> Any:
    """Return `spec` if it is a tree, such as a mask; if it is a function of the params, return its result.

    The first row that holds:

    | `spec` | what happens |
    |---|---|
    | a class | an error says what to pass instead |
    | a function that is not a node | it is called |
    | any other object that fits the params | it is returned, callable or not |
    | a node that wraps a function, or whose leaves are all callable | it is called |
    | a callable node with a leaf that is not a spec leaf | it is called |
    | any other | an error says where it does not fit |

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
    return fit_spec(spec, jtu.tree_map(_parameter_or_none, tree), is_spec_leaf=is_spec_leaf, name=name).spec


def _parameter_or_none(x: object) -> Any:
    return x if is_parameter(x) else None


class FittedSpec(NamedTuple):
    """A spec that fits a tree: each of its leaves, of which None is one, with the subtree of the tree at its place.

    Attributes:
        spec: the prefix tree, in the mappings that the tree has.
        treedef: its structure.
        pairs: its leaves and those subtrees.
        is_leaf: what a leaf of it is.
    """

    spec: PyTree
    treedef: PyTreeDef
    pairs: list[tuple[Any, Any]]
    is_leaf: Callable[[Any], bool]

    def path(self, i: int) -> KeyPath:
        """Return the key path of the i-th leaf."""
        return flatten_with_path(self.spec, self.is_leaf)[0][i][0]


class _Argument(NamedTuple):
    """What errors say about a spec, and what its leaves are.

    Attributes:
        name: what the caller calls the argument.
        is_spec_leaf: whether an object, which may be a node, is a leaf of it.
        hint: the end of the error of one that does not fit.
    """

    name: str
    is_spec_leaf: Callable[[Any], bool]
    hint: str


def fit_spec(
    spec: PyTree,
    params: PyTree,
    *,
    is_spec_leaf: Callable[[Any], bool],
    name: str,
    hint: str = "",
    asked: PyTree = None,
    refusal: str = "",
) -> FittedSpec:
    """Do what the table of `resolve_spec` says, for params in which non-parameters are already None.

    Args:
        spec: as in `resolve_spec`.
        params: the params.
        is_spec_leaf: as in `resolve_spec`.
        name: as in `resolve_spec`.
        hint: what the error of a spec that does not fit says at its end.
        asked: what a function is called with, of the structure of the params; by default, the params.
        refusal: why a function cannot be called, as the end of a sentence; "" if it can.

    Returns:
        The spec, or its result, fitted to the params.

    Raises:
        ValueError: the spec does not fit, a function raises an error, or it cannot be called.
    """
    argument = _Argument(name, is_spec_leaf, hint)
    asked = params if asked is None else asked
    if isinstance(spec, type):
        raise ValueError(
            f"{name} is the class {spec.__qualname__}. To select its instances, use treekit.path_mask, or path_labels "
            "for labels and rates"
        )
    is_function = callable(spec) and jtu.all_leaves([spec])
    if not is_function:
        try:
            return _fit_prefix(spec, params, argument)
        except ValueError:  # it does not fit, so it is called, if it may be
            if not _may_be_called(spec, is_spec_leaf):
                raise
    if refusal:
        raise ValueError(f"the function given as {name} {refusal}")
    try:
        result = spec(asked)
    except Exception as error:
        if isinstance(spec, TreeSpec):  # a mask of treekit, whose own errors say what is wrong with it
            raise
        raise _error_of_function(error, asked, name) from error
    fitted = _fit_prefix(result, params, argument._replace(name=f"{name}(params)"))
    _refuse_leaf_predicate(spec, result, asked, argument)
    return fitted


def _fit_prefix(spec: object, tree: PyTree, argument: _Argument) -> FittedSpec:
    """Find the subtree of a tree for each leaf of a prefix tree.

    None in the prefix tree is allowed where a filtered model has None, that is, for anything that cannot be trained.

    Raises:
        ValueError: it is not a prefix of the tree; the message names the first key path that differs.
    """
    name, is_spec_leaf, hint = argument

    def is_leaf(x: object) -> bool:
        return x is None or is_spec_leaf(x)

    while True:
        leaves, treedef = jtu.tree_flatten(spec, is_leaf=is_leaf)
        try:
            parts = flatten_up_to(treedef, tree)
            break
        except ValueError as error:
            changed = _in_nodes_of_tree(spec, tree)
            if changed is spec:
                raise ValueError(f"{prefix_mismatch(name, treedef, tree, error)}{hint}") from None
            spec = changed
    fitted = FittedSpec(spec, treedef, list(zip(leaves, parts, strict=True)), is_leaf)
    for i, (leaf, part) in enumerate(fitted.pairs):
        if leaf is None and not is_spec_leaf(None) and any(map(can_be_trained, jtu.tree_leaves(part))):
            raise ValueError(
                f"{name} does not fit the tree it is for: at key path {path_text(fitted.path(i), name)} it has None, "
                f"and the tree it is for {type_name(part)}{hint}"
            )
    return fitted


def _in_nodes_of_tree(spec: PyTree, tree: PyTree) -> Any:
    """Return a spec in the mappings that the tree has, or without variables of Flax; itself if neither changes it."""
    changed = mappings_as_in(like=tree, tree=spec)
    return values_of_variables(spec) if changed is spec and has_variables(spec) else changed


def _may_be_called(spec: Any, is_spec_leaf: Callable[[Any], bool]) -> bool:
    """Whether a node that does not fit is called, as the table of `resolve_spec` says.

    `is_truly_callable` is true of a node that wraps a function, or whose leaves are all callable: also of a callable
    node without leaves.
    """
    is_of_spec_leaves = all(map(is_spec_leaf, jtu.tree_leaves(spec, is_leaf=is_spec_leaf)))
    return is_truly_callable(spec) or (callable(spec) and not is_of_spec_leaves)


def _error_of_function(error: Exception, params: PyTree, name: str) -> ValueError:
    of_one_leaf = "; of a function of one leaf, treekit.leaf_mask(f) makes a mask" if "mask" in name else ""
    return ValueError(
        f"the function given as {name} raised {describe_error(error)}. It is called with all of the params (here "
        f"{type(params).__name__}), and returns a tree: {name}=lambda params: jax.tree.map(f, params){of_one_leaf}"
    )


def _refuse_leaf_predicate(spec: Callable[[Any], Any], result: object, params: PyTree, argument: _Argument) -> None:
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
