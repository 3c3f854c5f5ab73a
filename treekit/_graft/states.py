"""Walk through a tree for `graft`, and collect its leaves by the optimizer states to which they belong."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.key_path import is_variable, path_name
from treekit._base.states import is_state
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree


@dataclasses.dataclass(eq=False)
class Leaf:
    """An array or a number in a tree."""

    path: Any
    name: str
    value: Any


@dataclasses.dataclass(eq=False)
class State:
    """An optimizer state in a tree, such as Optax's ScaleByAdamState; or the whole tree, for leaves outside of states.

    Attributes:
        name: its key path.
        kind: the name of its class; or the names of its fields, if one of the trees has dicts instead of states.
        labels: the keys above it that do not depend on wrappers, such as the label in a partition.
        leaves: the leaves for which it is the innermost state, by the path below it.
        lengths: the lengths of the lists of these leaves, by the path below it.
        place: its index among the states with the same kind and labels, and their number.
    """

    name: str = ""
    kind: object = None
    labels: tuple[str, ...] = ()
    leaves: dict[str, Leaf] = dataclasses.field(default_factory=dict[str, Leaf])
    lengths: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
    place: tuple[int, int] = (0, 1)


def states_of(*trees: PyTree) -> list[list[State]]:
    """Return the states that have leaves, in order, for each of the trees to match."""
    nodes = [_nodes(tree) for tree in trees]
    classes: list[set[Any]] = [{type(x) for x in found if is_state(type(x))} for found in nodes]
    fields: dict[frozenset[str], tuple[str, ...]] = {
        frozenset(cls._fields): cls._fields for found in classes for cls in found
    }
    # Trees that Orbax and Flax restore without a target have dicts instead of states and of Flax's variables, and
    # perhaps strings as indices.
    has_variables = [any(map(is_variable, found)) for found in nodes]
    return [
        _Walk(fields, plain=not all(classes), unboxed=any(has_variables) and not has).states_of(tree)
        for tree, has in zip(trees, has_variables, strict=True)
    ]


class _Walk:
    """A walk through one tree that collects its states."""

    def __init__(self, fields: Mapping[frozenset[str], tuple[str, ...]], *, plain: bool, unboxed: bool) -> None:
        self._fields = fields
        self._plain = plain
        self._unboxed = unboxed
        self._states = [State()]

    def states_of(self, tree: PyTree) -> list[State]:
        self._visit(tree, (), (), "", self._states[0], ())
        equals: dict[Any, list[State]] = defaultdict(list)
        for state in self._states:
            if state.leaves:
                equals[state.kind, state.labels].append(state)
        for group in equals.values():
            for i, state in enumerate(group):
                state.place = (i, len(group))
        return [state for state in self._states if state.leaves]

    def _visit(
        self,
        x: object,
        path: tuple[Any, ...],
        named: tuple[Any, ...],
        below: str,
        state: State,
        labels: tuple[str, ...],
    ) -> None:
        """Collect what is below `path`; `named` is that path without the values of Flax variables."""
        if jtu.all_leaves([x]):
            if below in state.leaves:
                raise ValueError(
                    f"graft needs a different name for each leaf, but two leaves are called {path_name(named)}"
                )
            if dtype_of(x) is not None:
                state.leaves[below] = Leaf(path, path_name(named), x)
            return
        children = self._children(x)
        parts = [part for part, _, _ in children]
        kind = self._kind(x, parts)
        if kind is not None:
            below, state = "", State(path_name(named), kind, labels)
            self._states.append(state)
        before = len(self._states), len(state.leaves)
        for part, key, child in children:
            if is_variable(x) or (self._unboxed and is_mapping(x) and parts == ["value"] and jtu.all_leaves([child])):
                self._visit(child, (*path, key), named, below, state, labels)
                continue
            no_label = kind is not None or hasattr(key, "idx") or (self._plain and part.isdecimal())
            inner = f"{below}.{part}" if below else part
            self._visit(child, (*path, key), (*named, key), inner, state, labels if no_label else (*labels, part))
        length = _length(children)
        if length and before[0] == len(self._states) and before[1] < len(state.leaves):
            state.lengths[below] = length

    def _children(self, x: object) -> list[tuple[str, Any, Any]]:
        """Return name, key and value of each child, with indices and fields in their order, which JAX's dicts lose."""
        found = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]
        children = [(path_name(path), path[0], child) for path, child in found]
        parts = [part for part, _, _ in children]
        if all(map(str.isdecimal, parts)):
            return sorted(children, key=lambda child: int(child[0]))
        order = self._fields.get(frozenset(parts))
        return sorted(children, key=lambda child: order.index(child[0])) if order else children

    def _kind(self, x: object, parts: list[str]) -> object:
        if not self._plain:
            return type(x).__name__ if is_state(type(x)) else None
        fields = frozenset(parts)
        return fields if fields in self._fields and isinstance(x, (dict, tuple)) else None


def _length(children: list[tuple[str, Any, Any]]) -> int:
    """Return the number of entries, or 0 unless this is a list; Flax's also have a child without leaves."""
    entries = {part for part, _, _ in children if part.isdecimal()}
    is_list = entries == {str(i) for i in range(len(entries))}
    others = (child for part, _, child in children if part not in entries)
    return len(entries) if entries and is_list and not any(map(jtu.tree_leaves, others)) else 0


def _nodes(tree: PyTree) -> list[Any]:
    """Return all nodes and leaves of a tree."""
    found: list[Any] = []

    def see(x: object) -> bool:
        found.append(x)
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    return found
