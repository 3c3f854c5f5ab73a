"""Which leaves does a class around them declare not to be trained?

| a class | what it declares |
|---|---|
| with a field of `field(trainable=False)`, or `metadata={"trainable": False}` | nothing in that field is trained |
| with `__treekit_trainable__ = False` | nothing in its instances is trained |
| a module of Flax NNX | only its `Param`s are trained, and variables of classes with `__treekit_trainable__ = True` |
| a variable of Flax for statistics, a cache, sown values or a random stream | it is not trained |
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from treekit._base.flax import is_nnx_module, is_no_parameter, is_param, is_variable_class, variable_class
from treekit._base.jax import jtu
from treekit._base.layouts import TRAINABLE
from treekit._base.tree import one_level
from treekit._base.types import IsLeaf, PyTree
from treekit._names.key_path import keyed_children

_WHOLE_CLASS = "__treekit_trainable__"


def declares(cls: Any) -> bool:
    """Whether a class declares that leaves in its instances are not trained."""
    return is_nnx_module(cls) or _declares_itself(cls)


def _declares_itself(cls: Any) -> bool:
    """Whether a class says so itself: of some of its fields, or of all leaves in its instances."""
    return bool(_excluded_fields(cls)) or _is_frozen(cls)


def _is_frozen(cls: Any) -> bool:
    """Whether a class says of all leaves in its instances that they are not trained."""
    if hasattr(cls, _WHOLE_CLASS):
        return getattr(cls, _WHOLE_CLASS) is False
    return is_no_parameter(cls)


@functools.lru_cache(1_000)  # asked of every class in a tree; classes that are not used any more are forgotten
def _excluded_fields(cls: Any) -> frozenset[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return frozenset(f.name for f in fields if not f.metadata.get(TRAINABLE, True))


def _fields(x: PyTree, excluded: frozenset[str]) -> list[tuple[PyTree, bool]]:
    """Return the children of a dataclass, each with whether it is in an excluded field."""
    keyed = keyed_children(x)
    _check_keys(type(x), excluded, [text for text, _ in keyed])
    return [(child, text in excluded) for text, child in keyed]


def _check_keys(cls: Any, excluded: frozenset[str], keys: list[str | None]) -> None:
    """Raise a TypeError if a field that is not trained may be a child whose key is not the name of a field."""
    unknown = [key for key in keys if key not in {f.name for f in dataclasses.fields(cls)}]
    if unknown and (missing := sorted(excluded.difference(filter(None, keys)))):
        raise TypeError(
            f'{cls.__qualname__}.{missing[0]} is declared with {{"trainable": False}}, but the class is registered so '
            f"that its children have the keys {', '.join(map(str, keys))}, and which of them is this field is not "
            "known. Register it with treekit.register_node or jax.tree_util.register_dataclass"
        )


def declared_frozen(tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
    """Return whether the class around each leaf declares that it is not trained.

    Args:
        tree: any pytree.
        is_leaf: what counts as a leaf besides the leaves.

    Returns:
        One bool for each of `jax.tree.leaves(tree, is_leaf=is_leaf)`.

    Raises:
        TypeError: which of the children of a dataclass is such a field is not known.
    """

    def is_whole(x: object) -> bool:
        return (is_leaf is not None and is_leaf(x)) or jtu.all_leaves([x])

    def decides(x: object) -> bool:
        return (is_leaf is not None and is_leaf(x)) or declares(variable_class(x))

    def decides_in_module(x: object) -> bool:  # modules in it do not
        cls: Any = variable_class(x)
        return (is_leaf is not None and is_leaf(x)) or is_variable_class(cls) or _declares_itself(cls)

    def in_plain_tree(part: PyTree) -> Iterator[bool]:
        """Yield the answer for each leaf of a part that is in no module of Flax."""
        for x in jtu.tree_leaves(part, is_leaf=decides):
            cls: Any = variable_class(x)
            if _is_frozen(cls):
                yield from all_frozen(x)
            elif is_whole(x):
                yield False
            elif excluded := _excluded_fields(cls):
                others = in_nnx_module if is_nnx_module(cls) else in_plain_tree
                for child, is_excluded in _fields(x, excluded):
                    yield from all_frozen(child) if is_excluded else others(child)
            else:  # a module of Flax that excludes no field
                yield from in_nnx_module(x)

    def in_nnx_module(part: PyTree) -> Iterator[bool]:
        """Yield the answer for each leaf of a module, in which variables decide, and what is in none is frozen."""
        for x in jtu.tree_leaves(part, is_leaf=decides_in_module):
            cls: Any = variable_class(x)
            is_variable = is_variable_class(cls)
            if is_variable and getattr(cls, _WHOLE_CLASS, is_param(cls)):
                values = [x] if is_whole(x) else one_level(x)[0]
                yield from itertools.chain(*map(in_plain_tree, values))
            elif is_variable or _is_frozen(cls) or is_whole(x):
                yield from all_frozen(x)
            else:
                for child, is_excluded in _fields(x, _excluded_fields(cls)):
                    yield from all_frozen(child) if is_excluded else in_nnx_module(child)

    def all_frozen(part: PyTree) -> Iterator[bool]:
        return itertools.repeat(True, len(jtu.tree_leaves(part, is_leaf=is_leaf)))

    return list(in_plain_tree(tree))
