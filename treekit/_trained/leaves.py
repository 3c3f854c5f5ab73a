"""Which leaves can be trained, and which of them are?

| a leaf | can it be trained? |
|---|---|
| a floating-point or complex array, of JAX or of NumPy | yes |
| a Python float or complex number to which only dicts, lists, tuples and variables of Flax lead | yes, as in Optax |
| such a number in an instance of another class | it is a setting: only if the tree has no such array |
| any other | no |

Programs of ten lines begin with `{"w": 0.0}`, and constraints have multipliers `(1.0, 1.0)` next to arrays.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from treekit._base.dtype import as_array, has_dtype
from treekit._base.flax import is_nnx_module, is_variable
from treekit._base.jax import is_ref, jtu
from treekit._base.predicates import can_be_trained
from treekit._base.tree import is_mapping, or_leaf
from treekit._base.types import IsLeaf, PyTree
from treekit._trained.declared import declared_frozen

T = TypeVar("T")

_NUMBERS = (float, complex)


def which_are_trained(tree: PyTree, is_leaf: IsLeaf = None) -> list[bool]:
    """Return for each of `jax.tree.leaves(tree, is_leaf=is_leaf)` whether it is trained."""
    can_train = which_can_be_trained(tree, jtu.tree_leaves(tree, is_leaf=is_leaf), is_leaf)
    return [x and not y for x, y in zip(can_train, declared_frozen(tree, is_leaf), strict=True)]


def which_can_be_trained(tree: PyTree, leaves: Sequence[Any], is_leaf: IsLeaf = None) -> list[bool]:
    """Return for each leaf of a tree, in order, whether it can be trained, whatever classes declare."""
    are_arrays = list(map(can_be_trained, leaves))
    are_numbers = [isinstance(x, _NUMBERS) for x in leaves]
    if any(are_arrays) and any(are_numbers):
        plain = _numbers_in_plain_containers(tree, is_leaf)
        are_numbers = [x and is_plain for x, is_plain in zip(are_numbers, plain, strict=True)]
    return [x or y for x, y in zip(are_arrays, are_numbers, strict=True)]


def as_arrays(leaves: Sequence[Any], can_train: Sequence[bool]) -> list[Any]:
    """Return leaves with numbers that can be trained as arrays, and with the array of each reference."""
    return [
        x[...] if is_ref(x) else as_array(x) if trains and not has_dtype(x) else x
        for x, trains in zip(leaves, can_train, strict=True)
    ]


def numbers_as_arrays(tree: T) -> T:
    """Return a tree with an array in place of each Python number that can be trained."""
    leaves, treedef = jtu.tree_flatten(tree)
    if not any(isinstance(x, _NUMBERS) for x in leaves):
        return tree
    pairs = zip(leaves, which_can_be_trained(tree, leaves), strict=True)
    out: T = treedef.unflatten(as_array(x) if trains and isinstance(x, _NUMBERS) else x for x, trains in pairs)
    return out


def _numbers_in_plain_containers(tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
    """Return for each leaf that is a number whether only such nodes lead to it; False for other leaves.

    In a module of Flax NNX, its variables decide (`declared`).
    """

    def is_of_another_class(x: object) -> bool:
        return not (is_mapping(x) or isinstance(x, (list, tuple)) or is_variable(x) or is_nnx_module(x))

    parts = jtu.tree_leaves(tree, is_leaf=or_leaf(is_leaf, is_of_another_class))
    return [isinstance(part, _NUMBERS) for part in parts for _ in jtu.tree_leaves(part, is_leaf=is_leaf)]
