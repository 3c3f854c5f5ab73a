"""`tree_at`: copy a tree with some of its leaves or subtrees replaced."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from treekit._at.locate import Run, check_same, find, hint, is_empty_tuple, locate, mark
from treekit._base.describe import count, describe_value
from treekit._base.types import LeafPredicate

T = TypeVar("T")


class _Missing:
    """The default of an argument that may be None."""

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
    """Return a copy of a tree with some of its leaves or subtrees replaced.

    The nodes are rebuilt as in `jax.tree.map`, and no other code of their classes runs. So a replacement can be
    anything: an array of another shape, None, a whole subtree.

    Args:
        where: takes a tree like `tree`, and returns the leaf or subtree to replace, or a sequence of them. It must not
            depend on the values or types of leaves.
        tree: any pytree.
        replace: the replacement, or a sequence of them if `where` returns a sequence. Pass this or `replace_fn`.
        replace_fn: takes each node that `where` returns, and returns its replacement.
        is_leaf: as in `jax.tree.flatten`; with `lambda x: x is None` you can replace each None.

    Returns:
        A tree with the classes and containers of `tree`. `tree` itself is not changed.

    Raises:
        ValueError: `where` returns something that is not a node of the tree, such as a static field; it returns the
            same node twice, a node and one inside it, or one of several None; it depends on the leaves; `replace` has
            another length; or you passed both or neither of `replace` and `replace_fn`.
        TypeError: `where` returns a sequence, and `replace` is not one.

    Source: the contract of `equinox.tree_at`.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    """
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes exactly one of replace and replace_fn")

    marked = mark(tree, is_leaf)
    found, plain = find(where, marked), where(tree)
    if is_empty_tuple(found) or (issubclass(type(found), (tuple, list)) and any(map(is_empty_tuple, found))):
        marked = mark(tree, lambda x: is_empty_tuple(x) or (is_leaf is not None and is_leaf(x)))
        found = find(where, marked)
        if is_empty_tuple(found) and is_empty_tuple(plain):  # not a () of the tree, which is a mark
            found, plain = list[Any](), list[Any]()
        elif any(map(is_empty_tuple, found)):
            raise ValueError(f"where returned (), which is not a node of the tree. {hint(marked, ())}")
    indices = check_same(plain, found, marked)
    places = locate(found, indices, marked)

    if not isinstance(replace_fn, _Missing):
        replacements = list(map(replace_fn, places.originals(marked)))
    else:
        replacements = [replace] if places.single else _as_list(replace, len(places.nodes))
    out: T = places.treedef.unflatten(_exchange(marked.leaves, places.runs, replacements))
    return out


def _exchange(leaves: list[Any], runs: list[Run], replacements: list[Any]) -> list[Any]:
    """Return the leaves, with one replacement for each run."""
    out: list[Any] = []
    end = 0
    for run in runs:
        out += leaves[end : run.start]
        out.append(replacements[run.which])
        end = run.stop
    return out + leaves[end:]


def _as_list(replace: Any, length: int) -> list[Any]:
    nodes = count(length, "node")
    try:
        values = list(replace)
    except TypeError:
        raise TypeError(
            f"where returned {nodes}, so replace must be a sequence of {length}, found {describe_value(replace)}"
        ) from None
    if len(values) != length:
        raise ValueError(f"where returned {nodes}, and replace has {count(len(values), 'value')}")
    return values
