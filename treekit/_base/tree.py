"""Flatten one level of a tree, or several trees with one structure, with errors that say where they differ."""

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import jax

from treekit._base.jax import jtu
from treekit._base.types import PyTree, PyTreeDef, Updates

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


def flatten_updates(treedef: PyTreeDef, updates: Updates) -> list[Any]:
    """Flatten updates up to the structure of the params; a None in place of a subtree becomes one None per leaf."""
    try:
        parts: list[Any] = treedef.flatten_up_to(updates)
    except ValueError as error:
        params = treedef.unflatten(range(treedef.num_leaves))
        try:
            parts = treedef.flatten_up_to(jtu.tree_map(_spread_none, updates, params, is_leaf=is_none))
        except ValueError:
            raise prefix_mismatch("the tree of params", treedef, updates, error, "the updates") from None
    return parts


def _spread_none(x: object, part: object) -> Any:
    return jtu.tree_map(as_none, part) if x is None else x


def as_none(_: object) -> None:
    """Return None for a leaf."""


def prefix_mismatch(
    name: str, prefix_treedef: PyTreeDef, tree: PyTree, error: ValueError, whole: str = "the tree it is for"
) -> ValueError:
    """Return an error that says where `name` is not a prefix of `tree`; `error` itself if JAX does not say where."""
    try:
        jtu.tree_broadcast(prefix_treedef.unflatten(range(prefix_treedef.num_leaves)), tree)
    except ValueError as told:
        error = told
    text = str(error).replace("broadcast_prefix prefix_tree", name).replace("the prefix pytree ", "")
    text = re.sub(rf"{re.escape(name)}(\.\w+|\[[^]]+])+", lambda found: re.sub(r"\['?(.*?)'?]", r".\1", found[0]), text)
    return ValueError(f"{name} does not fit {whole}.\n{text.replace('the full pytree', whole)}")
