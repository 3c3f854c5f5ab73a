"""`TreeSpec`: masks and labels that are functions of a whole tree."""

import abc
from typing import Any, ClassVar, NoReturn, TypeVar

from treekit._base.jax import jtu
from treekit._base.types import LeafPredicate, PyTree
from treekit._text.arguments import refuse_class

T = TypeVar("T")


class TreeSpec(abc.ABC):
    """A function of a whole tree. As a filter_spec it is called once; any other function is called with each leaf."""

    selects_all_trained: ClassVar[bool] = False  # only of `trainable`

    def __call__(self, tree: T) -> T:
        """Return a tree of the same structure, with a value for each leaf."""
        refuse_class(tree, repr(self))
        out: T = jtu.tree_structure(tree).unflatten(self.of_leaves(tree, None))
        return out

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is a function of a tree, which has no truth value: combine masks by ~mask, mask | other and "
            "mask & other, not by `not`, `or` and `and`; and write all labels in one table"
        )

    @abc.abstractmethod
    def of_leaves(self, tree: PyTree, is_leaf: LeafPredicate | None) -> list[Any]:
        """Return the value for each leaf, in the order of `jax.tree.leaves`."""
