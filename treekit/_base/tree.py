"""Flatten one level of a tree, or several trees with one structure, with errors that say where they differ."""

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import jax

from treekit._base.describe import describe, describe_keys
from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable, leaf_path_text, path_text
from treekit._base.predicates import has_gradient, is_inexact_array
from treekit._base.types import KeyPath, PyTree, PyTreeDef, Updates

# Faster than a Python function, and called for every node.
is_none = functools.partial(operator.is_, None)


def is_mapping(x: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether `x` is a mapping; to a type checker, which would else narrow `x`, of any types."""
    return isinstance(x, Mapping)


def children_of(x: object) -> dict[Any, Any]:
    """Return the children of a node by key, or by position if its class gives a key twice."""
    children = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
    by_key = {path[0]: child for path, child in children}
    if len(by_key) < len(children):
        return {jax.tree_util.FlattenedIndexKey(i): child for i, (_, child) in enumerate(children)}
    return by_key


def flatten_up_to_each(treedef: PyTreeDef, rest: Iterable[Any]) -> Iterator[list[Any]]:
    """Flatten each of `rest` up to `treedef`; raise a ValueError that says which of them does not fit."""
    for i, tree in enumerate(rest):
        try:
            yield treedef.flatten_up_to(tree)
        except ValueError as error:
            raise prefix_mismatch("tree", treedef, tree, error, f"rest[{i}]") from None


def flatten_updates(treedef: PyTreeDef, updates: Updates, name: str = "updates") -> list[Any]:
    """Flatten updates up to the structure of the params; a None in place of a subtree becomes one None per leaf.

    Raises:
        ValueError: they differ in structure; the message names the first key path.
    """
    try:
        parts: list[Any] = treedef.flatten_up_to(updates)
    except ValueError:
        params = treedef.unflatten(range(treedef.num_leaves))
        try:
            parts = treedef.flatten_up_to(jtu.tree_map(_spread_none, updates, params, is_leaf=is_none))
        except ValueError as error:
            where = updates_mismatch(treedef, updates, name) or error
            raise ValueError(f"the {name} do not fit the params: {where}") from None
    return parts


def updates_mismatch(treedef: PyTreeDef, updates: Updates, name: str) -> str:
    """Say where updates, which have this name, first differ in structure from params; "" if that is unknown."""
    found = _mismatch(treedef, updates, are_updates=True)
    return f"at {path_text(found.path)}, the params have {found.prefix}, and the {name} {found.tree}" if found else ""


def _spread_none(x: object, part: object) -> Any:
    return jtu.tree_map(as_none, part) if x is None else x


def as_none(_: object) -> None:
    """Return None for a leaf."""


def prefix_mismatch(
    name: str, prefix_treedef: PyTreeDef, tree: PyTree, error: ValueError, whole: str = "the tree it is for"
) -> ValueError:
    """Return an error that says where `name` is not a prefix of `tree`; with the text of `error` if that is unknown."""
    found = _mismatch(prefix_treedef, tree)
    if found is None:
        return ValueError(f"{name} does not fit {whole}: {error}")
    where = f"at key path {path_text(found.path, name)}"
    return ValueError(f"{name} does not fit {whole}: {where} it has {found.prefix}, and {whole} {found.tree}")


def check_no_foreign_floats(tree: PyTree, name: str) -> None:
    """Raise a TypeError for a NumPy array of bf16 or float8, which `is_inexact_array` does not select."""
    for i, x in enumerate(jtu.tree_leaves(tree)):
        if has_gradient(x) and not is_inexact_array(x):
            raise TypeError(
                f"{name} would leave out the array at {leaf_path_text(tree, i)}, {describe(x)}: to NumPy, its dtype is "
                "not a floating-point one, so treekit.is_inexact_array and Equinox's do not select it. Make it an "
                "array of JAX: jax.numpy.asarray(x)"
            )


class Mismatch(NamedTuple):
    """Where a tree first differs from a prefix of it, and what each of them has there."""

    path: KeyPath
    prefix: str
    tree: str


def _mismatch(prefix_treedef: PyTreeDef, tree: PyTree, *, are_updates: bool = False) -> Mismatch | None:
    with contextlib.suppress(Exception):  # classes of users may raise anything where they are rebuilt or compared
        prefix = prefix_treedef.unflatten(range(prefix_treedef.num_leaves))
        return _first_mismatch(prefix, tree, (), are_updates)
    return None


def _first_mismatch(prefix: PyTree, tree: PyTree, path: KeyPath, are_updates: bool) -> Mismatch | None:
    """Return where `tree` first differs from a prefix of it; None fits anything in updates, where leaves are leaves."""
    if are_updates and tree is None:
        return None
    if jtu.all_leaves([prefix]):
        is_node = are_updates and not jtu.all_leaves([tree])
        return Mismatch(path, "a leaf", type(tree).__qualname__) if is_node else None
    if type(prefix) is not type(tree):
        return Mismatch(path, *map(_kind, (prefix, tree)))
    mine, others = children_of(prefix), children_of(tree)
    if mine.keys() != others.keys():
        lengths = f"length {len(mine)}", f"length {len(others)}"
        return Mismatch(path, *(lengths if isinstance(prefix, (list, tuple)) else describe_keys(mine, others)))
    if _one_level(prefix) != _one_level(tree):
        return Mismatch(path, f"a {type(prefix).__qualname__}", "one with other static values, or in another order")
    paths = {key: path if is_variable(prefix) else (*path, key) for key in mine}  # as in flatten_with_path
    found = (_first_mismatch(mine[key], others[key], paths[key], are_updates) for key in mine)
    return next(filter(None, found), None)


def _one_level(x: object) -> PyTreeDef:
    return jtu.tree_structure(x, is_leaf=lambda y: y is not x)


def _kind(x: object) -> str:
    """Write the class of a node, or of a leaf and what it is."""
    name = type(x).__qualname__
    return f"{name} {describe(x)}" if isinstance(x, jax.Array) else describe(x) if dtype_of(x) is not None else name
