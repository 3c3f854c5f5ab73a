"""Flatten trees up to the structure of another one, with errors that say where they differ, and in what.

| function | flattens | None in place of a subtree | its error |
|---|---|---|---|
| `flatten_up_to` | one tree | does not fit | is short; callers say more with `prefix_mismatch` or `updates_mismatch` |
| `flatten_up_to_each` | each of several trees | does not fit | says which of them does not fit, and where |
| `flatten_updates` | updates, up to the params | one None for each leaf | says where they do not fit |
| `fit_prefix` | one tree, up to a prefix tree in mappings of any class | does not fit | says where it does not fit |
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.flax import has_variables, values_of_variables
from treekit._base.jax import jtu
from treekit._base.tree import children_of, is_mapping, is_none, numbered, one_level
from treekit._base.types import IsLeaf, KeyPath, PyTree, PyTreeDef, Updates
from treekit._compare.nodes import mappings_as_in
from treekit._compare.pairs import describe_keys, walk_pairs
from treekit._names.key_path import flatten_with_path, path_text
from treekit._text.describe import type_name


def flatten_up_to(treedef: PyTreeDef, tree: PyTree) -> list[Any]:
    """Flatten a tree up to a structure, as `treedef.flatten_up_to` does.

    The error of that has the `repr` of a whole subtree, for which JAX copies all of its arrays from their devices.

    Raises:
        ValueError: the structure is not a prefix of the tree.
    """
    if treedef.node_data() is None:  # a leaf
        return [tree]
    for is_leaf in (is_none, None):  # most trees have this structure, with None as a leaf or without
        leaves, structure = jtu.tree_flatten(tree, is_leaf)
        if structure == treedef:
            return leaves
    parts: list[Any] = []
    pending = [(treedef, tree)]
    while pending:
        want, part = pending.pop()
        if want.node_data() is None:  # a leaf
            parts.append(part)
            continue
        children, have = one_level(part)
        if have.node_data() != want.node_data() or len(children) != len(want.children()):
            raise ValueError(f"expected {want}, found {type_name(part)}")
        pending += reversed([*zip(want.children(), children, strict=True)])
    return parts


def flatten_up_to_each(
    treedef: PyTreeDef, rest: Iterable[Any], names: tuple[str, str] = ("tree", "rest[{}]")
) -> Iterator[list[Any]]:
    """Flatten each of `rest` up to `treedef`; raise a ValueError that says which of them does not fit, by `names`."""
    for i, tree in enumerate(rest):
        try:
            # JAX's own function is faster. Its error may not copy arrays from their devices.
            with jax.transfer_guard_device_to_host("disallow"):
                parts = treedef.flatten_up_to(tree)
        except Exception:
            try:
                parts = flatten_up_to(treedef, tree)
            except ValueError as error:
                raise prefix_mismatch(names[0], treedef, tree, error, names[1].format(i)) from None
        yield parts


def flatten_updates(treedef: PyTreeDef, updates: Updates, name: str = "updates") -> list[Any]:
    """Flatten updates up to the structure of the params; a None in place of a subtree becomes one None per leaf.

    Raises:
        ValueError: they differ in structure; the message names the first key path.
    """
    try:
        return flatten_up_to(treedef, updates)
    except ValueError:
        params, _ = numbered(treedef)
        try:
            return flatten_up_to(treedef, jtu.tree_map(_spread_none, updates, params, is_leaf=is_none))
        except ValueError as error:
            where = updates_mismatch(treedef, updates, name) or error
            raise ValueError(f"the {name} do not fit the params: {where}") from None


def _spread_none(x: object, part: object) -> Any:
    treedef = jtu.tree_structure(part)
    return treedef.unflatten([None] * treedef.num_leaves) if x is None else x


def _first_mismatch(
    treedef: PyTreeDef, tree: PyTree, fits: Callable[[PyTree, PyTree], bool]
) -> tuple[KeyPath, str, str] | None:
    """Return where a tree first differs from a structure, and what both have there; None if that is unknown.

    Args:
        treedef: the structure.
        tree: the tree.
        fits: whether a part of the structure and the part of the tree at the same place fit, whatever is in them.
    """
    with contextlib.suppress(Exception):  # classes of users may raise anything where they are rebuilt or compared
        for pair in walk_pairs(treedef.unflatten(range(treedef.num_leaves)), tree, fits):
            if pair.kind == "type" and jtu.all_leaves([pair.a]):  # a number that stands for a leaf
                return pair.path, "a leaf", type_name(pair.b)
            if pair.kind == "type" and is_mapping(pair.a) and is_mapping(pair.b):
                keys, others = describe_keys(children_of(pair.a), children_of(pair.b))
                if keys != others:
                    return pair.path, keys, others
            if pair.kind is not None:
                return pair.path, *pair.described()
    return None


def updates_mismatch(treedef: PyTreeDef, updates: Updates, name: str) -> str:
    """Say where updates, which have this name, first differ in structure from params; "" if that is unknown."""
    mismatch = _first_mismatch(treedef, updates, lambda _, update: update is None)  # which fits any params
    if mismatch is None:
        return ""
    path, has, others = mismatch
    return f"at {path_text(path)}, the params have {has}, and the {name} {others}"


def prefix_mismatch(
    name: str, prefix_treedef: PyTreeDef, tree: PyTree, error: ValueError, whole: str = "the tree it is for"
) -> ValueError:
    """Return an error that says where a prefix tree does not fit a tree.

    Args:
        name: what the user calls the prefix tree.
        prefix_treedef: its structure.
        tree: the tree.
        error: of flattening the tree up to the structure. Its text is used if it is unknown where they differ.
        whole: what the user calls the tree.
    """
    mismatch = _first_mismatch(prefix_treedef, tree, lambda prefix, _: jtu.all_leaves([prefix]))  # it fits any subtree
    if mismatch is None:
        return ValueError(f"{name} does not fit {whole}: {error}")
    path, has, others = mismatch
    where = f"at key path {path_text(path, name)}"
    return ValueError(f"{name} does not fit {whole}: {where} it has {has}, and {whole} {others}")


class FittedPrefix(NamedTuple):
    """A prefix tree that fits a tree: each of its leaves, with the subtree of the tree at its place.

    Attributes:
        prefix: the prefix tree, in the mappings that the tree has.
        treedef: its structure.
        pairs: its leaves and those subtrees.
        is_leaf: what counts as a leaf of it.
    """

    prefix: PyTree
    treedef: PyTreeDef
    pairs: list[tuple[Any, Any]]
    is_leaf: IsLeaf

    def path(self, i: int) -> KeyPath:
        """Return the key path of the i-th leaf."""
        return flatten_with_path(self.prefix, self.is_leaf)[0][i][0]


def fit_prefix(name: str, prefix: PyTree, tree: PyTree, is_leaf: IsLeaf = None) -> FittedPrefix:
    """Fit a prefix tree to a tree: mappings fit by their keys, whatever their classes, and a variable as its value.

    Args:
        name: what the user calls the prefix tree, for errors.
        prefix: the prefix tree.
        tree: the tree.
        is_leaf: what counts as a leaf of the prefix tree, besides its leaves.

    Raises:
        ValueError: it does not fit; the message names the first key path that differs.
    """
    leaves, treedef = jtu.tree_flatten(prefix, is_leaf=is_leaf)
    try:
        return FittedPrefix(prefix, treedef, list(zip(leaves, flatten_up_to(treedef, tree), strict=True)), is_leaf)
    except ValueError as error:
        changed = mappings_as_in(like=tree, tree=prefix)
        if changed is prefix and has_variables(prefix):
            changed = values_of_variables(prefix)
        if changed is prefix:
            raise prefix_mismatch(name, treedef, tree, error) from None
    return fit_prefix(name, changed, tree, is_leaf)
