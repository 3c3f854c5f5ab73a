"""Select nodes by name and by class."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from treekit._base.jax import jtu
from treekit._base.tree import one_level, rebuilt
from treekit._base.types import IsLeaf, PyTree
from treekit._names.key_path import has_keys, walk
from treekit._names.pattern_errors import check_pattern_or_class, must_match, pattern_text
from treekit._names.patterns import Pattern
from treekit._select.advice import a_static_field, field_names, no_instance
from treekit._select.selection import Selection
from treekit._select.walk import Found, Indices, walk_matched
from treekit._text.arguments import RUNS_ITS_CODE
from treekit._text.lists import nearest


class ByName(Selection):
    """The nodes and leaves that match a pattern or a class; of a class, each outermost instance."""

    def __init__(self, where: Any, tree: PyTree, is_leaf: IsLeaf, *, strict: bool) -> None:
        self._tree = tree
        self.is_one = type(where) not in (list, tuple)
        selectors = list(map(check_pattern_or_class, [where] if self.is_one else where))
        if strict and not selectors:
            raise ValueError("where is empty: pass a pattern, a class, several of them, or a function of the tree")
        self._matches = list(walk_matched(selectors, tree, is_leaf))
        self.nodes = [x.node for x in self._matches]
        self.nodes_of_item = [[] for _ in selectors]
        for position, x in enumerate(self._matches):
            for i in (*x.patterns, *x.classes):
                self.nodes_of_item[i].append(position)
        for selector, positions in zip(selectors, self.nodes_of_item, strict=True):
            if strict and not positions:
                raise ValueError(f"where: {_why_nothing_matches(selector, tree, is_leaf)}")
        # A pattern that matches two nodes of one name may mean either of them. A class means all of them.
        unique_names((x.name, x.node) for x in self._matches if x.patterns)
        self.nested = next(_nested(self._matches), None)

    def names(self) -> list[tuple[int, str]]:
        return list(enumerate(x.name for x in self._matches))

    def replaced(self, values: Iterable[Any]) -> Any:
        return _replace_at(self._tree, [x.place for x in self._matches], values)


def unique_names(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return nodes by name; raise a ValueError if two of them have one name."""
    nodes: dict[str, Any] = {}
    for name, node in named:
        if name in nodes:
            raise ValueError(
                f"two nodes are called {name!r}: a key contains a dot or is empty, or a string and a number are "
                "written alike. Select them with a function, where=lambda tree: ..."
            )
        nodes[name] = node
    return nodes


def _nested(matches: Sequence[Found]) -> Iterator[tuple[str, str]]:
    """Yield the names of nodes of which one is inside the other.

    In the order of a tree, the first node inside another one comes right after it, so only neighbours are compared.
    """
    for outer, inner in itertools.pairwise(matches):
        if inner.place[: len(outer.place)] == outer.place:
            yield outer.name, inner.name


def _replace_at(tree: PyTree, places: Sequence[Indices], values: Iterable[Any]) -> Any:
    """Return a copy of a tree with other values at some places, none of which is inside another.

    Raises:
        ValueError: a class changes its children when it is rebuilt.
    """
    value_at = dict(zip(places, values, strict=True))
    above = {place[:i] for place in places for i in range(len(place))}

    def build(old: PyTree, place: Indices) -> Any:
        if place in value_at:
            return value_at[place]
        if place not in above:
            return rebuilt(old)
        old_children, treedef = one_level(old)
        children = list(map(build, old_children, [(*place, i) for i in range(len(old_children))]))
        new = treedef.unflatten(children)
        _check_rebuilt(new, children)
        return new

    return build(tree, ())


def _check_rebuilt(node: PyTree, children: list[Any]) -> None:
    """Raise a ValueError unless a new node has the children that it was made of.

    They are the same objects; or, where a class puts them into containers of its own, they have the same leaves.
    """
    found = one_level(node)[0]
    if _ids(found) != _ids(children) and _ids(jtu.tree_leaves(found)) != _ids(jtu.tree_leaves(children)):
        raise ValueError(
            f"JAX cannot rebuild {type(node).__qualname__} around other values: it changes them. {RUNS_ITS_CODE}"
        )


def _ids(xs: list[Any]) -> list[int]:
    return list(map(id, xs))


def _why_nothing_matches(selector: Pattern | type[Any], tree: PyTree, is_leaf: IsLeaf) -> str:
    """Say for an error that a pattern or a class matches nothing in a tree."""
    nodes = list(walk(tree, is_leaf))
    if isinstance(selector, type):
        return no_instance(selector, (node for _, node in nodes))
    text = pattern_text(selector)
    above, _, last = text.rpartition(".")
    fields = [(x, last) for name, x in nodes if name == above and last in field_names(x) and has_keys(x)]
    if fields:
        return f"{text!r} is {a_static_field(fields)}"
    names = list(dict.fromkeys(name for name, _ in nodes))
    return (
        f"the pattern {text!r} matches nothing in the tree. The nearest names: {nearest(text, names)}. "
        f"{must_match(selector, names)}"
    )
