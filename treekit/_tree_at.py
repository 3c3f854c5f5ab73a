"""`tree_at`: replace leaves and subtrees, selected as in `tree_find`."""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack, overload

from treekit._base.describe import check_bool, count, describe_value
from treekit._base.jax import jtu
from treekit._base.key_path import listed
from treekit._base.types import LeafPredicate, PyTree
from treekit._tree_find import Found, Options, Selector, is_selector, is_several, locate, select

T = TypeVar("T")


class _Missing:
    """The default of an argument that may be None."""

    def __repr__(self) -> str:
        return "<required>"


_MISSING = _Missing()


# Where `where` may be one of two kinds, pyright does not know the type of a lambda's argument.
@overload
def tree_at(where: Selector, tree: T, replace: object, **options: Unpack[Options]) -> T: ...
@overload
def tree_at(where: Selector, tree: T, *, replace_fn: Callable[[Any], Any], **options: Unpack[Options]) -> T: ...
@overload
def tree_at(where: Callable[[T], Any], tree: T, replace: object, **options: Unpack[Options]) -> T: ...
@overload
def tree_at(
    where: Callable[[T], Any], tree: T, *, replace_fn: Callable[[Any], Any], **options: Unpack[Options]
) -> T: ...
def tree_at(
    where: Callable[[T], Any] | Selector,
    tree: T,
    replace: Any = _MISSING,
    replace_fn: Any = _MISSING,
    is_leaf: LeafPredicate | None = None,
    *,
    strict: bool = True,
) -> T:
    """Return a copy of a tree with some of its leaves or subtrees replaced.

    The nodes are rebuilt as in `jax.tree.map`, and no other code of their classes runs. So a replacement can be
    anything: an array of another shape, None, a whole subtree.

    Args:
        where: what to replace:

            - a function that takes a tree like `tree` and returns a leaf or subtree of it, or a sequence of them. It
              must not depend on the values or types of leaves.
            - a pattern of a name, as in `path_mask`: "layers.0.weight", or "**.attention". Subtrees have names too.
            - a class, such as `equinox.nn.Linear`: each of its outermost instances.
            - a list of patterns and classes.
        tree: any pytree.
        replace: the replacement, or a sequence of them if `where` is a list or the function `where` returns one, in its
            order. Each pattern or class must match one node. Pass this or `replace_fn`.
        replace_fn: takes each node that is selected, and returns its replacement.
        is_leaf: as in `jax.tree.flatten`; with `lambda x: x is None` you can replace each None.
        strict: False skips patterns and classes that match nothing, with their replacements, and accepts a function
            that returns an empty sequence. If nothing is left to replace, the result is a copy of `tree`.

    Returns:
        A tree with the classes and containers of `tree`. `tree` itself is not changed.

    Raises:
        ValueError: a pattern or a class matches nothing, or a function returns an empty sequence, and `strict` is True
            and `replace` not `[]`; both a node and one inside it are selected; a pattern or a class matches several
            nodes, and you passed `replace`; a function returns something that is not a node of the tree, such as a
            static field, the same node twice, or one of several None; it depends on the leaves; `replace` has another
            length; or you passed both or neither of `replace` and `replace_fn`.
        TypeError: `where` is or returns a sequence, and `replace` is not one; or `where`, `replace_fn` or `strict` is
            something else.

    Source: the contract of `equinox.tree_at`, for functions.

    >>> tree_at(lambda t: t["b"][0], {"a": 1, "b": (2, 3)}, 20)
    {'a': 1, 'b': (20, 3)}
    >>> tree_at(lambda t: (t["a"], t["b"]), {"a": 1, "b": (2, 3)}, replace_fn=str)
    {'a': '1', 'b': '(2, 3)'}
    >>> tree_at("**.bias", {"layers": [{"bias": 1}, {"bias": 2}]}, replace_fn=lambda bias: 10 * bias)
    {'layers': [{'bias': 10}, {'bias': 20}]}
    """
    check_bool("strict", strict)
    if (replace is _MISSING) == (replace_fn is _MISSING):
        raise ValueError("tree_at takes exactly one of replace and replace_fn")
    if not (replace_fn is _MISSING or callable(replace_fn)):
        raise TypeError(
            f"replace_fn must be a function of the node that is selected, found {describe_value(replace_fn)}. To put a "
            "value there, pass it as replace"
        )
    if is_selector(where):
        found = select(where, tree, is_leaf, strict=strict)
        check_apart(found)
        if replace_fn is _MISSING:
            found, values = _with_values(where, found, replace)
        else:
            values = _call_each(replace_fn, [x.node for x in found], lambda: [x.name for x in found])
        copy: T = replace_at(tree, found, values)
        return copy
    function: Any = where
    is_meant = not strict or (type(replace) in (list, tuple) and not replace)
    located = locate(function, tree, is_leaf, strict=not is_meant)
    if replace_fn is not _MISSING:
        names = located.names
        values = _call_each(replace_fn, located.nodes.values(), lambda: [names()[key] for key in located.nodes])
    elif located.is_one:
        values = [replace]
    else:
        values = _as_list(replace, len(located.nodes), "returned") if located.nodes else []
    out: T = located.replace(values)
    return out


def _call_each(
    replace_fn: Callable[[Any], Any], nodes: Iterable[object], names: Callable[[], Sequence[str]]
) -> list[Any]:
    out: list[Any] = []
    for node in nodes:
        try:
            out.append(replace_fn(node))
        except Exception as error:
            name = names()[len(out)] or "the root"
            error.add_note(f"the function `replace_fn` of tree_at raised this for {name}")
            raise
    return out


def _with_values(where: object, found: list[Found], replace: Any) -> tuple[list[Found], list[Any]]:
    """Return the nodes with their replacements: one for a pattern or a class, or one for each of a list of them.

    Those that match nothing have been refused before, or are skipped.
    """
    matched = [[x for x in found if i in x.selectors] for i in range(len(where) if is_several(where) else 1)]
    for nodes in matched:
        if len(nodes) > 1:
            raise ValueError(
                f"where matches {count(len(nodes), 'node')}: {listed([x.name for x in nodes])}. Pass replace_fn, which "
                "takes each of them, or select one"
            )
    if len(found) < sum(map(len, matched)):
        raise ValueError(f"where selects the same node twice; it selects {listed([x.name for x in found])}")
    values = _as_list(replace, len(matched), "has") if is_several(where) else [replace]
    pairs = [(nodes[0], value) for nodes, value in zip(matched, values, strict=True) if nodes]
    return [node for node, _ in pairs], [value for _, value in pairs]


def check_apart(found: list[Found]) -> None:
    """Raise a ValueError if one of the nodes is inside another, so that its replacement would be lost."""
    for outer, inner in itertools.pairwise(found):
        if inner.place[: len(outer.place)] == outer.place:
            raise ValueError(
                f"where matches {inner.name!r}, which is inside {outer.name or 'the root'!r}, and where matches that "
                "too, so one of the replacements would be lost. Match one of them, or call tree_at twice"
            )


def replace_at(tree: PyTree, found: Iterable[Found], values: Iterable[Any]) -> Any:
    """Return a copy of a tree with other values for nodes that were found in it, none of which is inside another."""
    replacements = {x.place: value for x, value in zip(found, values, strict=True)}
    above = {place[:i] for place in replacements for i in range(len(place))}

    def rebuilt(x: PyTree, place: tuple[int, ...]) -> Any:
        if place in replacements:
            return replacements[place]
        if place not in above:
            return jtu.tree_map(_same, x)  # a copy, so that the trees share no container
        children, treedef = jtu.tree_flatten(x, is_leaf=functools.partial(operator.is_not, x))
        return treedef.unflatten([rebuilt(child, (*place, i)) for i, child in enumerate(children)])

    return rebuilt(tree, ())


def _same(leaf: object) -> object:
    return leaf


def _as_list(replace: Any, length: int, verb: str) -> list[Any]:
    nodes = f"{verb} {count(length, 'node' if verb == 'returned' else 'item')}"
    try:
        values = list(replace)
    except TypeError:
        raise TypeError(
            f"where {nodes}, so replace must be a sequence of {length}, found {describe_value(replace)}"
        ) from None
    if len(values) != length:
        raise ValueError(f"where {nodes}, and replace has {count(len(values), 'value')}")
    return values
