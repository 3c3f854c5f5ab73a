"""What is a leaf called? Key paths written as names: `layers.0.bias`."""

import functools
import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from treekit._base.flax import is_bookkeeping, is_variable
from treekit._base.jax import jtu, registry, untyped
from treekit._base.tree import or_leaf
from treekit._base.types import IsLeaf, KeyPath, PyTree, PyTreeDef

# The attribute that has the text of a key. `path_name` can write any key, and takes ten times as long.
_TEXT_OF_KEY: dict[Any, str] = {
    jax.tree_util.SequenceKey: "idx",
    jax.tree_util.DictKey: "key",
    jax.tree_util.GetAttrKey: "name",
}
_VALUE = jax.tree_util.GetAttrKey("value")  # the only key below a variable of Flax


def path_name(path: KeyPath) -> str:
    """Write a key path as patterns do, `layers.0.bias`; attributes, keys and indices look the same."""
    name: str = untyped.tree_util.keystr(path, simple=True, separator=".")
    return name


def key_name(key: Any) -> str:
    """Write one key of a path as `path_name` does."""
    attribute = _TEXT_OF_KEY.get(type(key))
    return path_name((key,)) if attribute is None else str(getattr(key, attribute))


def path_text(path: KeyPath, tree_name: str = "") -> str:
    """Write a key path for an error: `layers.0.bias`, `mask.layers.0.bias` with the name of its tree, or `the root`."""
    return ".".join(filter(None, (tree_name, path_name(path)))) or "the root"


def leaf_path_text(tree: PyTree, i: int, is_leaf: IsLeaf = None) -> str:
    """Write the key path of the i-th leaf for an error. For errors only: computing all paths is slow."""
    return path_text(flatten_with_path(tree, is_leaf)[0][i][0])


def flatten_with_names(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str, Any]]:
    """Flatten a tree, with the name of each leaf."""
    return [(path_name(path), x) for path, x in flatten_with_path(tree, is_leaf)[0]]


def flatten_with_distinct_names(tree: PyTree) -> list[tuple[str, Any]]:
    """Flatten a tree, with the name of each leaf; or with its path as JAX writes it, if another leaf has that name."""
    flat = [(path_name(path), path, x) for path, x in flatten_with_path(tree)[0]]
    counts = Counter(name for name, _, _ in flat)
    return [(name if counts[name] == 1 else jtu.keystr(path), x) for name, path, x in flat]


def flatten_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Flatten a tree as `jax.tree_util.tree_flatten_with_path` does, with the paths that names are made of.

    These lack the key `value` below a variable of Flax, and below a box of Linen. So a variable, its value and a boxed
    value all have one name: `flax.nnx.Optimizer` passes variables to `init`, and their values to `update`.
    """
    leaves, treedef = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)
    if not any(_VALUE in path for path, _ in leaves):  # as in most trees
        return leaves, treedef

    named: list[tuple[KeyPath, Any]] = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=or_leaf(is_leaf, is_variable))[0]:
        inside = jtu.tree_flatten_with_path(x, is_leaf=is_leaf)[0]  # of a leaf, that leaf, and no keys
        named += [((*path, *below[1:]), leaf) for below, leaf in inside]  # of a variable, without the key `value`
    return named, treedef


def start_below(start: str, text: str | None) -> str:
    """Return the start of a child: its name with a dot at its end, which the names below it start with.

    The dot distinguishes the root, whose start is "", from a child whose key is the empty string, whose start is ".".

    Args:
        start: that of the parent.
        text: the key of the child, as `keyed_children` writes it; None for one that is called as its parent is.
    """
    return start if text is None else f"{start}{text}."


def walk(tree: PyTree, is_leaf: IsLeaf = None, start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with its name, as `flatten_with_names` names leaves, before the nodes in it."""
    if not is_bookkeeping(tree):
        yield start[:-1], tree
    for text, child in keyed_children(tree, is_leaf):
        yield from walk(child, is_leaf, start_below(start, text))


def keyed_children(x: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str | None, Any]]:
    """Return the children of a node with their keys as text; None for the value of a Flax variable, which has none."""
    if is_leaf is not None and is_leaf(x):
        return []
    kind: type[object] = x.__class__  # to type checkers, `type(x)` is partially unknown
    if kind is not tuple and issubclass(kind, tuple):
        # In JAX 0.10.2, the faster function below gives all children of a named tuple the key of the first.
        leaves = jtu.tree_flatten_with_path(x, is_leaf=functools.partial(operator.is_not, x))[0]
        children: Any = [(path[0], child) for path, child in leaves if path]
    else:
        level = registry.flatten_one_level_with_keys(x)
        children = [] if level is None else level[0]  # None for a leaf
    if is_variable(x):
        return [(None, child) for _, child in children]
    return [(key_name(key), child) for key, child in children]


def has_keys(x: PyTree) -> bool:
    """Whether the children of a node have keys of their own, and are not just called 0, 1, …; True for a leaf."""
    level = registry.flatten_one_level_with_keys(x)
    return level is None or not any(isinstance(key, jax.tree_util.FlattenedIndexKey) for key, _ in level[0])
