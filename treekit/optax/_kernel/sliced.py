"""Run a core on some of the leaves of the params: the state that it sees, and the state of all leaves again."""

import copy
from collections.abc import Sequence
from typing import Any

import optax

from treekit._base.jax import jtu
from treekit._base.types import OptState, Params, PyTreeDef
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.state_map import LikeParams, numbers_of_leaves, places


class SlicedState:
    """A state, taken apart: what it has for each leaf of the params, of which some can be read and written.

    For example, the state of adam for params (w, b) has the slots count, mu and nu. `part([1])` is a state of adam for
    the params [b], with the same count, and `put([1], new)` puts such a state back.

    Attributes:
        slots: the trees of the state that are like the params, each as a list, with one item for each leaf of the
            params; and all other leaves, as they are.
        treedef: the structure of the state, which has the slots as leaves.
    """

    def __init__(self, state: OptState, params: Params) -> None:
        trees, self.treedef = _take_apart(state, params)
        self._likes = [like for _, like in trees]
        self._numbers = numbers_of_leaves(params)
        self.slots: list[Any] = [x if like is None else _items(like, self._numbers) for x, like in trees]

    def for_all(self, params: Params) -> "SlicedState":
        """Return a state for all params, made of this one for some of them, with a MaskedNode for each param."""
        leaves, treedef = jtu.tree_flatten(params, is_leaf=is_hole)
        all_params = LikeParams(leaves, [(i,) for i in range(len(leaves))], treedef)
        whole = copy.copy(self)
        whole._numbers = numbers_of_leaves(params)
        whole._likes = [None if like is None else all_params for like in self._likes]
        holes = [optax.MaskedNode()] * len(whole._numbers)
        whole.slots = [x if like is None else holes[:] for x, like in zip(self.slots, self._likes, strict=True)]
        return whole

    def part(self, indices: Sequence[int]) -> Any:
        """Return the state for some leaves of the params, by their indices: for a list of these leaves."""
        return self.treedef.unflatten(
            x if like is None else pick(indices, x) for x, like in zip(self.slots, self._likes, strict=True)
        )

    def put(self, indices: Sequence[int], new: OptState) -> None:
        """Put such a state back; of leaves that belong to no param, the last counts."""
        for k, x in enumerate(self.treedef.flatten_up_to(new)):
            if self._likes[k] is None:
                self.slots[k] = x
            else:
                place(self.slots[k], indices, x)

    def whole(self) -> Any:
        """Return the state for all leaves."""
        return self.treedef.unflatten(
            x if like is None else _tree(like, dict(zip(self._numbers, x, strict=True)))
            for x, like in zip(self.slots, self._likes, strict=True)
        )


def pick(indices: Sequence[int], leaves: Sequence[Any]) -> list[Any]:
    """Return the leaves with these indices."""
    return [leaves[i] for i in indices]


def place(leaves: list[Any], indices: Sequence[int], new: Sequence[Any]) -> None:
    """Put new leaves instead of those with these indices."""
    for i, x in zip(indices, new, strict=True):
        leaves[i] = x


def _take_apart(state: OptState, params: Params) -> tuple[list[tuple[Any, LikeParams | None]], PyTreeDef]:
    """Return the trees of a state that are like the params, all its other leaves, and its structure with these."""
    found = [(x, like) for x, _, like in places(state, params)]
    trees = {id(x) for x, like in found if like is not None}
    return found, jtu.tree_structure(state, is_leaf=lambda x: id(x) in trees)


def _items(like: LikeParams, numbers: Sequence[int]) -> list[Any]:
    """Return what a tree that is like the params has for each of these; a hole may stand for several."""
    found = {i: part for part, each in zip(like.parts, like.numbers, strict=True) for i in each}
    return [found[i] for i in numbers]


def _tree(like: LikeParams, items: dict[int, Any]) -> Any:
    """Return such a tree with other items; holes stay."""
    pairs = zip(like.parts, like.numbers, strict=True)
    return like.treedef.unflatten(part if is_hole(part) else items.get(each[0], part) for part, each in pairs)
