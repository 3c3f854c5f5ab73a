"""`trainable`: the leaves that can be trained, without those that the author of a class excludes."""

import dataclasses
from typing import TypeVar

from treekit._base.types import IsLeaf, PyTree
from treekit._select.masks import MaskSpec
from treekit._trained.leaves import which_are_trained

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, repr=False)
class Trainable(MaskSpec):
    """A mask function that is True for each leaf that can be trained.

    True for floating-point and complex arrays, except those in a field with `field(trainable=False)`: buffers, such as
    running statistics or a fixed embedding. In a module of Flax NNX, True for its `Param`s only; in an `nnx.State`, for
    all but the variables that Flax has for something else, such as `BatchStat`. False for every other leaf.

    Use it wherever Optax accepts a mask function, and as the `filter_spec` of `filter` and `partition`. For classes of
    others, combine it with a mask by name or by class, such as
    `trainable & ~path_mask(BatchNorm, "**.running_mean")`; or set the attribute `__treekit_trainable__` of the class to
    False. Equinox's own `filter` and `partition` call a function with each leaf, without its field: pass them
    `trainable(tree)`.
    """

    selects_all_trained = True

    def __call__(self, tree: T) -> T:
        """Return a tree of bools: whether each leaf can be trained.

        Args:
            tree: any pytree. Fields of other dataclasses, such as Equinox modules, are excluded by
                `metadata={"trainable": False}`.

        Returns:
            A tree of bools with the structure of `tree`.

        Raises:
            TypeError: a dataclass with such a field is registered without key paths, so which of its children is that
                field is not known; or `tree` is a class.

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from treekit import field, filter, node
        >>> @node
        ... class Scale:
        ...     factor: jax.Array
        ...     mean: jax.Array = field(trainable=False)
        >>> filter(Scale(jnp.ones(2), jnp.zeros(2)), trainable)
        Scale(factor=f32[2], mean=None)
        """
        return super().__call__(tree)

    def __repr__(self) -> str:
        return "treekit.trainable"

    def _answers(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool | None]:
        return [*which_are_trained(tree, is_leaf)]


trainable: Trainable = Trainable()
