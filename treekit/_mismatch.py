"""Flatten several trees up to the structure of one, with errors that say where they differ, and in what."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.describe import describe, describe_types, with_article
from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable, path_name, path_text
from treekit._base.tree import as_none, children_of, describe_keys, is_none
from treekit._base.types import KeyPath, PyTree, PyTreeDef, Updates
from treekit._tree_diff import static_differences

_STATIC = 4  # the number of static values in an error


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


def prefix_mismatch(
    name: str, prefix_treedef: PyTreeDef, tree: PyTree, error: ValueError, whole: str = "the tree it is for"
) -> ValueError:
    """Return an error that says where `name` is not a prefix of `tree`; with the text of `error` if that is unknown."""
    found = _mismatch(prefix_treedef, tree)
    if found is None:
        return ValueError(f"{name} does not fit {whole}: {error}")
    where = f"at key path {path_text(found.path, name)}"
    return ValueError(f"{name} does not fit {whole}: {where} it has {found.prefix}, and {whole} {found.tree}")


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
        return Mismatch(path, "a leaf", with_article(type(tree).__qualname__)) if is_node else None
    if type(prefix) is not type(tree):
        kinds = describe_kind(prefix), describe_kind(tree)
        return Mismatch(path, *(kinds if len({*kinds}) == 2 else describe_types(prefix, tree)))
    mine, others = children_of(prefix), children_of(tree)
    if mine.keys() != others.keys():
        lengths = f"length {len(mine)}", f"length {len(others)}"
        return Mismatch(path, *(lengths if isinstance(prefix, (list, tuple)) else describe_keys(mine, others)))
    if _one_level(prefix) != _one_level(tree):
        name = with_article(type(prefix).__qualname__)
        static = [(path_name(key) or "static", *sides) for key, sides in static_differences(prefix, tree, mine)]
        left, right = (", ".join(f"{each[0]} {each[i]}" for each in static[:_STATIC]) for i in (1, 2))
        return Mismatch(path, f"{name} with {left}", f"one with {right}") if static else Mismatch(path, name, "another")
    paths = {key: path if is_variable(prefix) else (*path, key) for key in mine}  # as in flatten_with_path
    found = (_first_mismatch(mine[key], others[key], paths[key], are_updates) for key in mine)
    return next(filter(None, found), None)


def _one_level(x: object) -> PyTreeDef:
    return jtu.tree_structure(x, is_leaf=lambda y: y is not x)


def describe_kind(x: object) -> str:
    """Write the class of a node, or what a leaf is."""
    if isinstance(x, jax.Array):
        return f"an array, {describe(x)}"
    return describe(x) if dtype_of(x) is not None or x is None else with_article(type(x).__qualname__)
