"""tree_at: a tree with some of its nodes replaced."""

from collections.abc import Callable
from typing import Any, TypeVar

from treekit._jax import jtu

T = TypeVar("T")


class _Missing:
    """The default of an argument for which None is a value."""

    def __repr__(self) -> str:
        return "<required>"


class _EmptyTuple(tuple[()]):
    """Stands for one particular `()` of a tree; Python has only one `()` for all of them."""


_MISSING = _Missing()


def tree_at(
    where: Callable[[T], Any],
    tree: T,
    replace: Any = _MISSING,
    replace_fn: Callable[[Any], Any] | _Missing = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
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
        ValueError: `where` names no node, the same node twice, a node inside another one it names, or one of several
            None; it depends on the leaves; `replace` has another length; not precisely one of `replace` and
            `replace_fn` is given.
        TypeError: `where` returns a sequence and `replace` is none.

    Source: the contract of `equinox.tree_at`.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    """
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes precisely one of replace and replace_fn")

    # A node is told by identity. Small ints and () are shared all over a program, and one list may stand at two places
    # of a tree; so `where` is shown a rebuilt tree, in which every leaf is an object made for its place and every
    # container is new.
    def stop(x: Any) -> bool:
        return (type(x) is tuple and not x) or (is_leaf is not None and is_leaf(x))

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=stop)
    marks: list[Any] = [_EmptyTuple() if type(x) is tuple and not x else object() for x in leaves]
    leaf_of = {id(mark): leaf for mark, leaf in zip(marks, leaves, strict=True)}
    marked: T = treedef.unflatten(marks)
    found = where(marked)
    _check_same(where(tree), found, leaf_of, stop)

    single, wanted = _single_or_many(marked, found, leaf_of)
    position = {id(node): i for i, node in enumerate(wanted)}
    items, outline = jtu.tree_flatten(marked, is_leaf=lambda x: id(x) in position)
    counts = [0] * len(wanted)
    for item in items:
        if id(item) in position:
            counts[position[id(item)]] += 1
    _check_counts(wanted, counts)

    def original(node: Any) -> Any:
        leaves, structure = jtu.tree_flatten(node)
        return structure.unflatten([leaf_of[id(mark)] for mark in leaves])

    if not isinstance(replace_fn, _Missing):
        replacements = [replace_fn(original(node)) for node in wanted]
    else:
        replacements = [replace] if single else _as_list(replace, len(wanted))
    out: T = outline.unflatten(
        [replacements[position[id(x)]] if id(x) in position else leaf_of[id(x)] for x in items],
    )
    return out


def _single_or_many(marked: Any, found: Any, leaf_of: dict[int, Any]) -> tuple[bool, list[Any]]:
    """Whether `where` named one node of the tree or made a sequence of several; and the list of them."""
    if id(found) in leaf_of or any(x is found for x in jtu.tree_leaves(marked, is_leaf=lambda x: x is found)):
        return True, [found]
    try:
        return False, list(found)
    except TypeError:
        raise ValueError(f"where names no node of the tree: it returned {found!r}. {_HINT}") from None


_HINT = (
    "It must return nodes of the tree it is given; a static field is none (see treekit.replace), and neither is what "
    "is computed from leaves."
)


def _check_same(plain: Any, found: Any, leaf_of: dict[int, Any], stop: Callable[[Any], bool]) -> None:
    """On the tree itself, `where` must find what it found on the tree of marks."""
    plain_leaves, plain_def = jtu.tree_flatten(plain, is_leaf=stop)
    marks, marks_def = jtu.tree_flatten(found)
    for mark in marks:
        if id(mark) not in leaf_of:
            raise ValueError(
                f"where names no node of the tree: {mark!r} is no leaf of it. {_HINT} A class whose reconstruction "
                "replaces its leaves shows like this too: register it with treekit.register_node."
            )
    if plain_def != marks_def or any(a is not leaf_of[id(m)] for a, m in zip(plain_leaves, marks, strict=True)):
        raise ValueError("where must go by the structure of the tree alone, and it depends on the leaves")


def _check_counts(wanted: list[Any], counts: list[int]) -> None:
    if len({id(x) for x in wanted if x is not None}) != sum(x is not None for x in wanted):
        raise ValueError("where names the same node twice")
    for node, count in zip(wanted, counts, strict=True):
        if node is None and (count > 1 or sum(x is None for x in wanted) > 1):
            raise ValueError(
                f"where names a None, and the tree has {count} of them; pass is_leaf=lambda x: x is None to tell them "
                "apart"
            )
        if count == 0:
            raise ValueError(
                f"where names {node!r}, which is no node of the tree, or lies inside another it names. {_HINT}"
            )
        if count > 1:
            raise ValueError(f"where names {node!r}, and the tree has that one object at {count} places")


def _as_list(replace: Any, length: int) -> list[Any]:
    try:
        values = list(replace)
    except TypeError:
        raise TypeError(
            f"where names {length} nodes, so replace must be a sequence of {length}, found {replace!r}"
        ) from None
    if len(values) != length:
        raise ValueError(f"where names {length} nodes, and replace has {len(values)} values")
    return values
