"""What is a leaf called? Key paths written as names."""

import functools
import operator
from collections.abc import Iterator
from typing import Any

import jax

from treekit._base.jax import jtu, untyped
from treekit._base.types import IsLeaf, KeyPath, PyTree, PyTreeDef


def path_text(path: KeyPath, tree: str = "") -> str:
    """Write a key path for an error by its name, after that of the tree, if it has one: `mask.layers.0.bias`."""
    return ".".join(filter(None, (tree, path_name(path)))) or "the root"


def leaf_path_text(tree: PyTree, i: int, is_leaf: IsLeaf = None) -> str:
    """Write the key path of the i-th leaf for an error; only then, since computing paths is slow."""
    return path_text(flatten_with_path(tree, is_leaf)[0][i][0])


def path_name(path: KeyPath) -> str:
    """Write a key path as patterns do, `layers.0.bias`; attributes, keys and indices look the same."""
    name: str = untyped.tree_util.keystr(path, simple=True, separator=".")
    return name


def key_name(key: Any) -> str:
    """Write one key of a path as `path_name` does."""
    attribute = _TEXT_OF_KEY.get(type(key))
    return path_name((key,)) if attribute is None else str(getattr(key, attribute))


# Of these, the text is known, and `path_name` takes ten times as long.
_TEXT_OF_KEY: dict[Any, str] = {
    jax.tree_util.SequenceKey: "idx",
    jax.tree_util.DictKey: "key",
    jax.tree_util.GetAttrKey: "name",
}


def flatten_with_names(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str, Any]]:
    """Flatten a tree, with the name of each leaf."""
    return [(path_name(path), x) for path, x in flatten_with_path(tree, is_leaf)[0]]


def flatten_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Flatten a tree as `jax.tree_util.tree_flatten_with_path` does, with the paths that names are made of.

    They lack the key `value` below a variable of Flax, and below a box of Linen. Both have the names of their values,
    since `flax.nnx.Optimizer` shows variables to `init`, and their values to `update`, and Linen has params with boxes
    and without.
    """
    leaves, treedef = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)
    if not any(_VALUE in path for path, _ in leaves):  # as in most trees
        return leaves, treedef

    def stop(x: object) -> bool:
        return is_variable(x) or (is_leaf is not None and is_leaf(x))

    named: list[tuple[KeyPath, Any]] = []
    for path, x in jtu.tree_flatten_with_path(tree, is_leaf=stop)[0]:
        if is_variable(x) and not (is_leaf is not None and is_leaf(x)):
            inside = jtu.tree_flatten_with_path(x, is_leaf=is_leaf)[0]
            named += [((*path, *below[1:]), leaf) for below, leaf in inside]
        else:
            named.append((path, x))
    return named, treedef


_VALUE = jax.tree_util.GetAttrKey("value")


def walk(x: PyTree, is_leaf: IsLeaf = None) -> Iterator[tuple[str, Any]]:
    """Yield each node of a tree with its name, as `flatten_with_names` names leaves, before the nodes in it."""
    todo = [("", x)]
    while todo:  # not by recursion, since trees may be deeper than Python's limit for that
        start, x = todo.pop()
        yield start[:-1], x
        todo += reversed([(start_below(start, text), child) for text, child in keyed_children(x, is_leaf)])


def start_below(start: str, text: str | None) -> str:
    """Return the name of a child with a dot at its end, given that of its parent and its key; "" for the root.

    The dot distinguishes the root, `""`, from a child whose key is the empty string, `"."`.
    """
    return start if text is None else f"{start}{text}."


def keyed_children(x: PyTree, is_leaf: IsLeaf = None) -> list[tuple[str | None, Any]]:
    """Return the children of a node with their keys as text; None for the value of a Flax variable, which has none."""
    if is_leaf is not None and is_leaf(x):
        return []
    kind: type[object] = x.__class__
    if kind is not tuple and issubclass(kind, tuple):
        # In JAX 0.10.2, the faster function below gives all children of a named tuple the key of the first.
        leaves = jtu.tree_flatten_with_path(x, is_leaf=functools.partial(operator.is_not, x))[0]
        children: Any = [(path[0], child) for path, child in leaves if path]
    else:
        level = _registry.flatten_one_level_with_keys(x)
        children = [] if level is None else level[0]  # None for a leaf
    if is_variable(x):
        return [(None, child) for _, child in children]
    return [(key_name(key), child) for key, child in children]


def has_keys(x: PyTree) -> bool:
    """Whether the class of a node is registered with key paths; without them, its children are called 0, 1, …."""
    level = _registry.flatten_one_level_with_keys(x)
    return level is None or not any(isinstance(key, jax.tree_util.FlattenedIndexKey) for key, _ in level[0])


def children_or_none(x: object) -> Any:
    """Return the children of a node, an iterable; None for a leaf."""
    level = _registry.flatten_one_level(x)
    return None if level is None else level[0]


_registry: Any = untyped.tree_util.default_registry


def is_variable(x: object) -> bool:
    """Whether `x` is a node of Flax whose only child is `value`: a variable, or Linen's box, `Partitioned`.

    treekit does not import Flax.
    """
    cls: Any = type(x)
    return _is_variable_class(cls)


def is_rng_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax that a random stream counts with, or its key."""
    return is_variable(x) and any(base.__name__ == "RngState" for base in type(x).__mro__)


@functools.lru_cache(1_000)  # asked of each node; classes that are not used any more are forgotten
def _is_variable_class(cls: Any) -> bool:
    return any(base.__name__ in _VARIABLES and base.__module__.startswith("flax.") for base in cls.__mro__)


_VARIABLES = ("Variable", "VariableState", "Partitioned")


def is_nnx_module(x: object) -> bool:
    """Whether `x` is a module of Flax NNX, whose children are all of its variables, or a class of such modules."""
    cls: Any = x if isinstance(x, type) else type(x)
    return any(base.__name__ == "Module" and base.__module__.startswith("flax.nnx.") for base in cls.__mro__)


def is_nnx_state(x: object) -> bool:
    """Whether `x` is an `nnx.State` of Flax."""
    return type(x).__name__ == "State" and type(x).__module__.startswith("flax.nnx.")
