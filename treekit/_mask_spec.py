"""Masks that are functions of a tree, combined by `|`, `&` and `~`."""

import dataclasses
from typing import Any, NoReturn, TypeVar

from treekit._base.jax import jtu
from treekit._base.types import IsLeaf, PyTree
from treekit._filter import TreeSpec

T = TypeVar("T")


class MaskSpec(TreeSpec):
    """A function that maps a tree to a tree of bools with the same structure; `|`, `&` and `~` make others."""

    def __call__(self, tree: T) -> T:
        out: T = jtu.tree_structure(tree).unflatten(self.of_leaves(tree, None))
        return out

    def __or__(self, other: "MaskSpec") -> "MaskSpec":
        out: MaskSpec = _combined(AnyOf, self, other)
        return out

    def __and__(self, other: "MaskSpec") -> "MaskSpec":
        out: MaskSpec = _combined(AllOf, self, other)
        return out

    def __invert__(self) -> "MaskSpec":
        return Inverse(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is a function of a tree, which has no truth value: combine masks by ~mask, mask | other and "
            "mask & other, not by `not`, `or` and `and`"
        )


def _combined(kind: "type[AnyOf] | type[AllOf]", mask: MaskSpec, other: object) -> Any:
    return kind((mask, other)) if isinstance(other, MaskSpec) else NotImplemented


@dataclasses.dataclass(frozen=True, repr=False)
class AnyOf(MaskSpec):
    """True where one of the masks is."""

    masks: tuple[MaskSpec, ...]

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.masks))})"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
        return list(map(any, zip(*(mask.of_leaves(tree, is_leaf) for mask in self.masks), strict=True)))


@dataclasses.dataclass(frozen=True, repr=False)
class AllOf(MaskSpec):
    """True where all of the masks are."""

    masks: tuple[MaskSpec, ...]

    def __repr__(self) -> str:
        return f"({' & '.join(map(repr, self.masks))})"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
        return list(map(all, zip(*(mask.of_leaves(tree, is_leaf) for mask in self.masks), strict=True)))


@dataclasses.dataclass(frozen=True, repr=False)
class Inverse(MaskSpec):
    """True where the mask is False."""

    mask: MaskSpec

    def __invert__(self) -> MaskSpec:
        return self.mask

    def __repr__(self) -> str:
        return f"~{self.mask!r}"

    def of_leaves(self, tree: PyTree, is_leaf: IsLeaf) -> list[bool]:
        return [not x for x in self.mask.of_leaves(tree, is_leaf)]
