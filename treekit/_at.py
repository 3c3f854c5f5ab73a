"""tree_at: a tree with some of its nodes replaced."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from treekit._describe import describe_value
from treekit._locate import Run, check_same, find, hint, is_empty_tuple, locate, mark
from treekit._types import LeafPredicate

T = TypeVar("T")


class _Missing:
    """The default of an argument for which None is a value."""

    def __repr__(self) -> str:
        return "<required>"


_MISSING = _Missing()


@overload
def tree_at(where: Callable[[T], Any], tree: T, replace: Any, *, is_leaf: LeafPredicate | None = None) -> T: ...
@overload
def tree_at(
    where: Callable[[T], Any], tree: T, *, replace_fn: Callable[[Any], Any], is_leaf: LeafPredicate | None = None
) -> T: ...
def tree_at(
    where: Callable[[T], Any],
    tree: T,
    replace: Any = _MISSING,
    replace_fn: Callable[[Any], Any] | _Missing = _MISSING,
    is_leaf: LeafPredicate | None = None,
) -> T:
    """A tree with some of its leaves or subtrees replaced; the tree given is left as it is.

    Nothing of the user's classes runs but their reconstruction, so a replacement can be anything: an array of another
    shape, None, a whole subtree.

    Args:
        where: takes a tree of the structure of `tree`, returns the node to replace, or a sequence of them. It must go
            by the structure alone, not by the values or types of leaves.
        tree: any pytree.
        replace: the replacement, or a sequence of them where `where` returns a sequence. Give this or `replace_fn`.
        replace_fn: takes each node that `where` names, returns its replacement.
        is_leaf: as in `jax.tree.flatten`; `lambda x: x is None` makes each None a node of its own.

    Returns:
        A tree with the class and containers of `tree`.

    Raises:
        ValueError: `where` names no node (a static field is none), the same node twice, a node and one inside it, or
            one of several None; it depends on the leaves; `replace` has another length; not precisely one of `replace`
            and `replace_fn` is given.
        TypeError: `where` returns a sequence and `replace` is none.

    Source: the contract of `equinox.tree_at`.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    """
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes precisely one of replace and replace_fn")

    marked = mark(tree, is_leaf)
    found, plain = find(where, marked), where(tree)
    if is_empty_tuple(found) or (issubclass(type(found), (tuple, list)) and any(map(is_empty_tuple, found))):
        marked = mark(tree, lambda x: is_empty_tuple(x) or (is_leaf is not None and is_leaf(x)))
        found = find(where, marked)
        if is_empty_tuple(found) and is_empty_tuple(plain):  # none of the tree's, which are marks: no nodes at all
            found, plain = [], []
        elif any(map(is_empty_tuple, found)):
            raise ValueError(f"where names (), which is no node of the tree. {hint(marked, ())}")
    indices = check_same(plain, found, marked)
    places = locate(found, indices, marked)

    if not isinstance(replace_fn, _Missing):
        replacements = list(map(replace_fn, places.originals(marked)))
    else:
        replacements = [replace] if places.single else _as_list(replace, len(places.nodes))
    out: T = places.treedef.unflatten(_exchange(marked.leaves, places.runs, replacements))
    return out


def _exchange(leaves: list[Any], runs: list[Run], replacements: list[Any]) -> list[Any]:
    """The leaves, with one replacement for each run of them."""
    out: list[Any] = []
    end = 0
    for run in runs:
        out += leaves[end : run.start]
        out.append(replacements[run.which])
        end = run.stop
    return out + leaves[end:]


def _as_list(replace: Any, length: int) -> list[Any]:
    try:
        values = list(replace)
    except TypeError:
        raise TypeError(
            f"where names {length} nodes, so replace must be a sequence of {length}, found {describe_value(replace)}"
        ) from None
    if len(values) != length:
        raise ValueError(f"where names {length} nodes, and replace has {len(values)} values")
    return values
