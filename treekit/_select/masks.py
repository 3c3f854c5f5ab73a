"""Mask functions: `leaf_mask`, and what `&`, `|` and `~` make of it, of `path_mask` and of `trainable`."""

import abc
import dataclasses
from typing import Any

from treekit._base.dtype import has_dtype
from treekit._base.jax import jtu
from treekit._base.types import IsLeaf, LeafPredicate, PyTree
from treekit._select.filter import ask
from treekit._select.tree_spec import TreeSpec
from treekit._text.describe import describe_value
from treekit._trained.leaves import as_arrays, which_can_be_trained


def leaf_mask(predicate: LeafPredicate) -> "MaskSpec":
    """Return a mask function that is True at every array for which a predicate is True.

    Use it wherever Optax accepts a mask function (`masked`, `adamw(mask=)`, `selective_transform(freeze_mask=)`, …),
    and as the `filter_spec` of `filter` and `partition`. `&`, `|` and `~` combine it with `path_mask` and `trainable`.

    The predicate is called with arrays only; a Python number that can be trained, as in `{"scale": 1.0}`, is an array.
    At every other leaf (a function, a string, a setting) the mask is False, and `~` does not make that True.

    Args:
        predicate: takes an array, and returns a bool. A mask is called in `init` and in each update, with
            the params, so ask for shapes and dtypes, not for values.

    Returns:
        A function that maps a tree to a tree of bools with the same structure. Equal predicates give equal masks.

    Raises:
        ValueError: raised by the mask if the predicate cannot be called, raises an error, or does not return a bool;
            the message names the key path.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> params = {"embed": jnp.ones((3, 2)), "w": jnp.ones((2, 2)), "b": jnp.ones(2), "f": jax.nn.relu}
    >>> leaf_mask(lambda x: x.ndim > 1)(params)
    {'b': False, 'embed': True, 'f': False, 'w': True}
    >>> from treekit import path_mask
    >>> (leaf_mask(lambda x: x.ndim > 1) & ~path_mask("embed"))(params)
    {'b': False, 'embed': False, 'f': False, 'w': True}
    """
    return LeafMask(predicate)


class MaskSpec(TreeSpec):
    """A function that maps a tree to a tree of bools with the same structure; `|`, `&` and `~` make others."""

    @abc.abstractmethod
    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        """Return for each leaf True, False, or None for one that the mask has no answer for; `~` leaves it None.

        `&` and `|` combine them by three-valued logic. In the mask itself, None becomes False.
        """

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:  # which `TreeSpec` asks for
        return [x is True for x in self._answers(tree, is_leaf)]

    def __or__(self, other: "MaskSpec") -> "MaskSpec":
        return _combine("|", self, other)

    def __and__(self, other: "MaskSpec") -> "MaskSpec":
        return _combine("&", self, other)

    def __invert__(self) -> "MaskSpec":
        return Inverse(self)


def _combine(operator: str, mask: MaskSpec, other: object) -> MaskSpec:
    if not isinstance(other, MaskSpec):
        by_name = f"path_mask({other!r})" if isinstance(other, str) else "path_mask(...)"
        raise TypeError(
            f"masks combine with masks only, found {mask!r} {operator} {describe_value(other)}: write mask {operator} "
            f"{by_name}, or treekit.leaf_mask(f) for a predicate"
        )
    return Combined(operator, (mask, other))


@dataclasses.dataclass(frozen=True, repr=False)
class LeafMask(MaskSpec):
    """The mask function that `leaf_mask` returns."""

    predicate: LeafPredicate

    def __repr__(self) -> str:
        return f"leaf_mask({describe_value(self.predicate)})"

    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
        # As arrays: in JAX 0.7 and 0.8, a Ref has no `ndim`.
        leaves = as_arrays(leaves, which_can_be_trained(tree, leaves, is_leaf))
        asked = [i for i, x in enumerate(leaves) if has_dtype(x)]
        answers: list[Any] = [None] * len(leaves)
        for i in asked:
            answers[i] = ask("leaf_mask", self.predicate, i, leaves, treedef)
        return answers


@dataclasses.dataclass(frozen=True, repr=False)
class Combined(MaskSpec):
    """True where one of two masks is, for "|", or both of them, for "&"."""

    operator: str
    masks: tuple[MaskSpec, MaskSpec]

    def __repr__(self) -> str:
        return f"({f' {self.operator} '.join(map(repr, self.masks))})"

    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        pairs = zip(*(mask._answers(tree, is_leaf) for mask in self.masks), strict=True)
        # One True decides "|", and one False decides "&", whatever the other answer is, also if it is unknown.
        decisive = self.operator == "|"

        def combined(pair: tuple[bool | None, ...]) -> bool | None:
            if decisive in pair:
                return decisive
            return None if None in pair else not decisive

        return list(map(combined, pairs))


@dataclasses.dataclass(frozen=True, repr=False)
class Inverse(MaskSpec):
    """True where the mask is False."""

    mask: MaskSpec

    def __repr__(self) -> str:
        return f"~{self.mask!r}"

    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        return [None if x is None else not x for x in self.mask._answers(tree, is_leaf)]
