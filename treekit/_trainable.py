"""`trainable`: the leaves that can be trained, without the fields that the author of a class excludes."""

import dataclasses
from typing import Any, TypeVar

from treekit._base.dtype import dtype_of, has_dtype, issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.types import IsLeaf, PyTree
from treekit._mask_spec import MaskSpec
from treekit._node.field import TRAINABLE

T = TypeVar("T")


class Trainable(MaskSpec):
    """A mask function that is True for each leaf that can be trained.

    True for floating-point and complex arrays, except those in a field with `field(trainable=False)`: buffers, such as
    running statistics or a fixed embedding. False for every other leaf.

    Use it wherever Optax accepts a mask function, and as the `filter_spec` of `treekit.optax.filtered`, `filter` and
    `partition`. For classes that you did not write, select by name, with `~path_mask("**.running_mean")`. Equinox's own
    `filter` and `partition` call a function with each leaf, without its field: pass them `trainable(tree)`.
    """

    def __call__(self, tree: T) -> T:
        """Return a tree of bools: whether each leaf can be trained.

        Args:
            tree: any pytree. Fields of Equinox modules, and of other registered dataclasses, are excluded by
                `metadata={"trainable": False}`.

        Returns:
            A tree of bools with the structure of `tree`.

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
        out: T = jtu.tree_structure(tree).unflatten(self.of_leaves(tree, None))
        return out

    def __repr__(self) -> str:
        return "treekit.trainable"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
        """Return the bools in the order of the leaves."""
        leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
        excluded = [False] * len(leaves)
        _exclude(treedef.unflatten(range(len(leaves))), excluded)
        return [_can_be_trained(x) and not out for x, out in zip(leaves, excluded, strict=True)]


trainable: Trainable = Trainable()


def _exclude(numbered: Any, excluded: list[bool]) -> None:
    """Set True in `excluded` for each leaf in a field that is not trained; leaves are replaced by their numbers."""
    for path, child in jtu.tree_flatten_with_path(numbered, is_leaf=lambda x: x is not numbered)[0]:
        if not path:  # a leaf
            return
        if getattr(path[0], "name", None) in _buffers(type(numbered)):
            for i in jtu.tree_leaves(child):
                excluded[i] = True
        else:
            _exclude(child, excluded)


def _buffers(cls: Any) -> set[str]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return {f.name for f in fields if not f.metadata.get(TRAINABLE, True)}


def _can_be_trained(x: object) -> bool:
    return has_dtype(x) and issubdtype(dtype_of(x), jnp.inexact)
