"""Which leaves does the class around them declare not to be trained?"""

import dataclasses
import functools
from typing import Any, cast

from treekit._base.flax import is_nnx_module, is_no_parameter, is_param, is_variable, is_variable_class, variable_class
from treekit._base.jax import jtu
from treekit._base.layouts import TRAINABLE
from treekit._base.tree import children_or_none, is_none
from treekit._base.types import LeafPredicate, PyTree
from treekit._names.key_path import keyed_children

_WHOLE_CLASS = "__treekit_trainable__"  # an attribute of a class; False excludes all leaves in its instances


def declared_frozen(tree: PyTree, is_leaf: LeafPredicate = is_none) -> list[bool]:
    """Return whether the class around each leaf declares that it is not trained.

    A class declares this of a field by `field(trainable=False)` or `metadata={"trainable": False}`, and of all leaves
    in its instances by `__treekit_trainable__ = False`. Flax declares it of running statistics, caches, values that
    were sown and random streams, by the classes of their variables.

    Args:
        tree: any pytree.
        is_leaf: what counts as a leaf besides the leaves: None, by default.

    Returns:
        One bool for each of `jax.tree.leaves(tree, is_leaf=is_leaf)`.

    Raises:
        TypeError: which of the children of a dataclass is such a field is not known.
    """
    kinds = set[Any]()

    def note_class(x: object) -> bool:
        kinds.add(variable_class(x))
        return False

    def is_part(x: object) -> bool:
        return is_leaf(x) or declares(variable_class(x))

    def parts_of(x: object) -> list[Any]:
        """Return the leaves of a tree, and in place of others the nodes around them whose classes declare something."""
        return jtu.tree_leaves(x, is_leaf=is_part)

    leaves = jtu.tree_leaves(tree, is_leaf=lambda x: note_class(x) or is_leaf(x))
    if not any(map(declares, kinds)):
        return [False] * len(leaves)
    frozen: list[bool] = []
    todo = [(part, False) for part in reversed(parts_of(tree))]  # whether it is frozen as a whole
    while todo:
        x, is_frozen = todo.pop()
        cls = cast(Any, variable_class(x))
        if not is_frozen and (not declares(cls) or (children_or_none(x) is None and cls is type(x))):  # a leaf, or None
            frozen.append(False)
        elif is_frozen or _is_frozen(cls):
            frozen += [True] * len(jtu.tree_leaves(x, is_leaf=is_leaf))
        elif is_nnx_module(cls):  # of which Flax trains the Params only
            for y in reversed(jtu.tree_leaves(x, is_leaf=lambda y: is_leaf(y) or is_variable(y))):
                kind = variable_class(y)
                is_in_param = is_variable_class(kind) and getattr(kind, _WHOLE_CLASS, is_param(kind))
                todo += [
                    (part, not is_in_param)
                    for part in (reversed(parts_of(y)) if is_in_param and kind is type(y) else [y])
                ]
        else:
            names, keyed = _excluded_fields(cls), keyed_children(x)
            _check_keys(cls, names, [text for text, _ in keyed])
            for text, child in reversed(keyed):
                parts = [child] if text in names else reversed(parts_of(child))
                todo += [(part, text in names) for part in parts]
    return frozen


def declares(cls: Any) -> bool:
    """Whether a class declares that leaves in its instances are not trained."""
    return bool(_excluded_fields(cls)) or _is_frozen(cls) or is_nnx_module(cls)


def _is_frozen(cls: Any) -> bool:
    return getattr(cls, _WHOLE_CLASS, not is_no_parameter(cls)) is False


@functools.lru_cache(1_000)  # asked of every class in a tree; classes that are not used any more are forgotten
def _excluded_fields(cls: Any) -> frozenset[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return frozenset(f.name for f in fields if not f.metadata.get(TRAINABLE, True))


def _check_keys(cls: Any, excluded: frozenset[str], keys: list[str | None]) -> None:
    """Raise a TypeError if a field that is not trained may be a child whose key is not the name of a field."""
    unknown = [key for key in keys if key not in {f.name for f in dataclasses.fields(cls)}]
    if unknown and (missing := sorted(excluded.difference(filter(None, keys)))):
        raise TypeError(
            f'{cls.__qualname__}.{missing[0]} is declared with {{"trainable": False}}, but the class is registered so '
            f"that its children have the keys {', '.join(map(str, keys))}, and which of them is this field is not "
            "known. Register it with treekit.register_node or jax.tree_util.register_dataclass"
        )
