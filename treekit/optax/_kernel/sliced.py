"""A state for all leaves of the params, and states for some of them, of which a core sees a list."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import optax

from treekit._base.jax import jtu
from treekit._base.types import OptState, Params, PyTreeDef
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.state_map import LikeParams, numbers_of_leaves, trees_of_state


@dataclasses.dataclass(frozen=True, eq=False)
class SlicedState:
    """A state, taken apart: what it has for some leaves of the params can be read and written.

    For example, the state of adam for params {b, w} has the slots count, [mu of b, mu of w] and [nu of b, nu of w].
    `part([1])` is a state of adam for the params [w], with the same count, and `put([1], new)` puts such a state back.

    Indices count the leaves of the params, and numbers count their holes too: of params [None, b, w], b and w have the
    indices 0 and 1, and the numbers 1 and 2.

    Attributes:
        slots: for each tree of the state that is like the params, a list, with an item for each leaf of the params; all
            other leaves of the state, as they are.
        trees: the trees that the lists were; None for each other leaf.
        numbers: the number of each leaf of the params, as in `LikeParams`.
        treedef: the structure of the state, which has the slots as leaves.
    """

    slots: list[Any]
    trees: list[LikeParams | None]
    numbers: list[int]
    treedef: PyTreeDef

    @classmethod
    def of(cls, state: OptState, params: Params) -> "SlicedState":
        """Take the state for these params apart."""
        found = [(x, like) for x, _, like in trees_of_state(state, params)]
        ids = {id(x) for x, like in found if like is not None}
        treedef = jtu.tree_structure(state, is_leaf=lambda x: id(x) in ids)
        numbers = numbers_of_leaves(params)
        slots = [x if like is None else _items(like, numbers) for x, like in found]
        return cls(slots, [like for _, like in found], numbers, treedef)

    @classmethod
    def like(cls, some: "SlicedState", params: Params) -> "SlicedState":
        """Return a state for all params, of holes for `put` to fill, with the structure of a state for some of them."""
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_hole)
        all_params = LikeParams(leaves, [(i,) for i in range(len(leaves))], treedef)
        numbers = numbers_of_leaves(params)
        pairs = list(zip(some.slots, some.trees, strict=True))
        slots = [x if like is None else [optax.MaskedNode()] * len(numbers) for x, like in pairs]
        return cls(slots, [None if like is None else all_params for _, like in pairs], numbers, some.treedef)

    def part(self, indices: Sequence[int]) -> Any:
        """Return the state for some leaves of the params, by their indices: for a list of these leaves."""
        pairs = zip(self.slots, self.trees, strict=True)
        return self.treedef.unflatten(x if like is None else pick(indices, x) for x, like in pairs)

    def put(self, indices: Sequence[int], new: OptState) -> None:
        """Put such a state back; of leaves that belong to no param, the last counts.

        Raises:
            ValueError: it has another structure.
        """
        for k, x in enumerate(self.treedef.flatten_up_to(new)):
            if self.trees[k] is None:
                self.slots[k] = x
            else:
                place(self.slots[k], indices, x)

    def whole(self) -> Any:
        """Return the state for all leaves."""
        pairs = zip(self.slots, self.trees, strict=True)
        return self.treedef.unflatten(x if like is None else self._tree(like, x) for x, like in pairs)

    def _tree(self, like: LikeParams, items: Sequence[Any]) -> Any:
        """Return a tree that is like the params, with other items; holes stay."""
        item_of = dict(zip(self.numbers, items, strict=True))
        parts = zip(like.parts, like.numbers, strict=True)
        return like.treedef.unflatten(part if is_hole(part) else item_of.get(each[0], part) for part, each in parts)


def _items(like: LikeParams, numbers: Sequence[int]) -> list[Any]:
    """Return what a tree that is like the params has for each of their leaves; a hole stands for several."""
    found = {i: part for part, each in zip(like.parts, like.numbers, strict=True) for i in each}
    return [found[i] for i in numbers]


def pick(indices: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with these indices."""
    return [leaves[i] for i in indices]


def place(leaves: list[Any], indices: Sequence[int], new: Sequence[Any]) -> None:
    """Put new leaves instead of those with these indices."""
    for i, x in zip(indices, new, strict=True):
        leaves[i] = x
