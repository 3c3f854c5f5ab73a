"""The params taken apart, into what is trained and the rest.

`_trained` says which leaves are trained; of updates without params, each array of numbers is. Everything else is None
inside, except that a MaskedNode stays one.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import optax

from treekit._base.flax import variable_class
from treekit._base.jax import jtu
from treekit._base.memory import owned
from treekit._base.predicates import is_numeric_array
from treekit._base.types import Params, PyTreeDef
from treekit._trained.declared import declared_frozen, declares
from treekit._trained.leaves import as_arrays, which_can_be_trained
from treekit.optax._kernel.holes import is_hole


def trained(params: Params) -> Any:
    """Return the params inside: the arrays that are trained, and None for everything else."""
    return flatten(params).inside()


class Flat(NamedTuple):
    """A tree of params taken apart, with None and MaskedNode as leaves.

    Attributes:
        tree: the tree.
        treedef: its structure.
        leaves: its leaves.
        arrays: the same, with the array of each reference, and an array for each Python number that can be trained.
        can_train: for each leaf, whether it can be trained.
        is_frozen: for each leaf, whether a class around it declares that it is not trained.
        is_trained: for each leaf, whether it is trained: it can be, and is not frozen.
    """

    tree: Params
    treedef: PyTreeDef
    leaves: list[Any]
    arrays: list[Any]
    can_train: list[bool]
    is_frozen: list[bool]
    is_trained: list[bool]

    def inside(self, parts: Iterable[Any] | None = None) -> Any:
        """Return a tree with these parts, by default the arrays, for what is trained. Arrays of NumPy are copied."""

        def seen(is_trained: bool, part: Any, leaf: Any) -> Any:
            if is_trained:
                return owned(part)
            return leaf if isinstance(leaf, optax.MaskedNode) else None

        return self.treedef.unflatten(map(seen, self.is_trained, self.arrays if parts is None else parts, self.leaves))


def flatten(tree: Params, *, are_updates: bool = False) -> Flat:
    """Take params apart; or updates, where the params are not passed."""
    classes = set[Any]()

    def stop(x: object) -> bool:
        classes.add(variable_class(x))  # of every node, so that the tree need not be walked for them
        return is_hole(x)

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    can_train = which_can_be_trained(tree, leaves, is_hole)
    arrays = as_arrays(leaves, can_train)
    if are_updates:
        can_train = list(map(is_numeric_array, arrays))
    is_frozen = declared_frozen(tree, is_hole) if any(map(declares, classes)) else [False] * len(leaves)
    is_trained = [x and not y for x, y in zip(can_train, is_frozen, strict=True)]
    return Flat(tree, treedef, leaves, arrays, can_train, is_frozen, is_trained)
