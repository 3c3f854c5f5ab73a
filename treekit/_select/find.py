"""`tree_find`: return leaves and subtrees, selected by name and by class, or by a function."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from treekit._base.predicates import is_truly_callable
from treekit._base.types import IsLeaf, LeafPredicate, PyTree
from treekit._names.patterns import Pattern
from treekit._select.by_function import ByFunction
from treekit._select.by_name import ByName, unique_names
from treekit._select.selection import Selection
from treekit._select.tree_spec import TreeSpec
from treekit._text.arguments import check_bool
from treekit._text.describe import type_name

T = TypeVar("T")

# What `tree_at` and `tree_find` take: a function that returns nodes of the tree, a pattern or a class, or several.
Selector: TypeAlias = Pattern | type[Any] | list[Any] | tuple[Any, ...]
Where: TypeAlias = Callable[[Any], Any] | Selector


class Options(TypedDict, total=False):
    is_leaf: LeafPredicate | None
    strict: bool


@overload
def tree_find(tree: PyTree, where: Selector, **options: Unpack[Options]) -> dict[str, Any]: ...
@overload
def tree_find(tree: T, where: Callable[[T], Any], **options: Unpack[Options]) -> dict[str, Any]: ...
def tree_find(
    tree: PyTree, where: Where, *, is_leaf: LeafPredicate | None = None, strict: bool = True
) -> dict[str, Any]:
    """Return the leaves and subtrees that `where` selects, by name.

    Args:
        tree: any pytree.
        where: as in `tree_at`: a function, a pattern, a class, or a list of patterns and classes.
        is_leaf: as in `jax.tree.flatten`.
        strict: False returns nothing for a pattern or a class that matches nothing.

    Returns:
        The nodes in the order of the tree, by their key paths joined by dots, as in `path_mask`. The root is called "".

    Raises:
        ValueError: a pattern or a class matches nothing, or a function returns an empty sequence, and `strict` is True;
            two nodes have one name; or, as in `tree_at`, a function returns something that is not a node.
        TypeError: `where` is something else, or `strict` is not a bool.

    >>> tree_find({"layers": [{"w": 1, "bias": 2}, {"w": 3, "bias": 4}]}, "**.bias")
    {'layers.0.bias': 2, 'layers.1.bias': 4}
    >>> tree_find({"layers": [{"w": 1}, {"w": 3}]}, "layers.*")
    {'layers.0': {'w': 1}, 'layers.1': {'w': 3}}
    """
    check_bool("strict", strict)
    selected = find(where, tree, is_leaf, strict=strict)
    return unique_names((name, selected.nodes[i]) for i, name in selected.names())


def find(
    where: object, tree: PyTree, is_leaf: IsLeaf, *, strict: bool, strict_function: bool | None = None
) -> Selection:
    """Find the nodes that `where` selects.

    Args:
        where: as in `tree_find`.
        tree: any pytree.
        is_leaf: as in `jax.tree.flatten`.
        strict: raise an error for a pattern or a class that matches nothing, and for an empty sequence of them.
        strict_function: raise an error for a function that returns an empty sequence; by default, as `strict` says.
    """
    if isinstance(where, (str, re.Pattern, type)) or type(where) in (list, tuple):
        return ByName(where, tree, is_leaf, strict=strict)
    # A mask is a function of the tree too, but it returns bools.
    if isinstance(where, TreeSpec) or not is_truly_callable(where):
        raise TypeError(
            "where must be a function of the tree, a pattern such as '**.weight', a class, or a list of patterns and "
            f"classes; found {type_name(where)}. Are the arguments in the right order?"
        )
    return ByFunction(where, tree, is_leaf, strict=strict if strict_function is None else strict_function)
