"""Match the leaves of two trees for `graft`: by key path, and in optimizer states by the class of the state."""

import dataclasses
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import Any

import jax
from jax.core import Tracer

from treekit._diff import tree_diff
from treekit._dtype import dtype_of
from treekit._jax import jtu
from treekit._key_path import is_variable, path_name
from treekit._types import PyTree

_HYPERPARAMS = "hyperparams."  # those of a new label are not carried over


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
    classes = [{cls for cls in _classes(tree) if is_state(cls)} for tree in trees]
    fields: dict[frozenset[str], tuple[str, ...]] = {
        frozenset(cls._fields): cls._fields for found in classes for cls in found
    }
    # Trees that Orbax and Flax restore without a target have dicts instead of states, and perhaps strings as indices.
    return [_Walk(fields, plain=not all(classes)).states_of(tree) for tree in trees]


def sources(
    state: State, new: list[State], old: list[State], known: Container[str]
) -> Iterator[tuple[Leaf, list[Leaf]]]:
    """Map the leaves of a state in the new tree to the leaves of the old tree from which they get their values.

    A new leaf may have several sources of equal value, such as the counts of groups that become one group.

    The old state is the one with the same kind, labels and place, or the only one of its kind. A leaf that it does not
    have may come from another label, under which the new tree no longer has it.

    Args:
        state: one of `new`.
        new: the states of the new tree.
        old: the states of the old tree.
        known: the names of the leaves whose sources are already known.

    Raises:
        ValueError: several leaves could be meant; the message lists them.
    """
    same_kind = [x for x in old if x.kind == state.kind]
    equals = [x for x in same_kind if x.labels == state.labels]
    if not equals and len(same_kind) == 1 == sum(x.kind == state.kind for x in new) and _belong(state, same_kind[0]):
        equals = same_kind
    claimed = {(x.kind, x.labels, x.place, below) for x in new for below in x.leaves}
    origins = _origins(state.labels, new, old, claimed)
    others = [x for x in same_kind if x.labels != state.labels and x.labels in origins]
    for below, leaf in state.leaves.items():
        if leaf.name in known:
            continue
        found = _find(state, below, equals)
        if not found and not below.startswith(_HYPERPARAMS):
            left = [x for x in others if not _is_of_param(below) or (x.kind, x.labels, x.place, below) not in claimed]
            found = _find(state, below, left)
        if found:
            yield leaf, found


def _find(state: State, below: str, candidates: list[State]) -> list[Leaf]:
    found = [x for x in candidates if below in x.leaves]
    placed = [x.leaves[below] for x in found if x.place == state.place]
    if (not placed and any(x.place[1] != state.place[1] for x in found)) or not _same_values(placed):
        name = state.leaves[below].name
        listed = "\n".join(f"  {x.leaves[below].name}" for x in found)
        raise ValueError(
            f"graft cannot decide from which leaf of the old tree {name} gets its value. The candidates:\n{listed}\n"
            f"Decide with rename, such as rename={{{found[0].leaves[below].name!r}: {name!r}}}"
        )
    return placed


def _origins(
    labels: tuple[str, ...], new: list[State], old: list[State], claimed: Container[Any]
) -> set[tuple[str, ...]]:
    """Return the labels in the old tree from which the parameters under these labels come.

    Without such a label, the parameters are new, and so is all of their state: with an old count of steps, Adam
    would treat moments of zero as those of a long run. For states without parameters, such as those of sgd, these are
    the labels that the new tree no longer has.
    """
    params = {(x.kind, below) for x in new if x.labels == labels for below in x.leaves if _is_of_param(below)}
    if not params:
        return {x.labels for x in old} - {x.labels for x in new}
    return {
        x.labels
        for x in old
        for below in x.leaves
        if (x.kind, below) in params and (x.kind, x.labels, x.place, below) not in claimed
    }


def _belong(state: State, old: State) -> bool:
    """Whether two states have a parameter in common, or the new one has no parameters."""
    params = [below for below in state.leaves if _is_of_param(below)]
    return not params or any(below in old.leaves for below in params)


def _is_of_param(below: str) -> bool:
    return "." in below and not below.startswith(_HYPERPARAMS)


def _same_values(leaves: list[Leaf]) -> bool:
    def same(x: object) -> bool:
        abstract = isinstance(x, (Tracer, jax.ShapeDtypeStruct))
        return x is leaves[0].value or not (abstract or tree_diff(leaves[0].value, x))

    return all(same(leaf.value) for leaf in leaves)


class _Walk:
    """A walk through one tree that collects its states."""

    def __init__(self, fields: Mapping[frozenset[str], tuple[str, ...]], *, plain: bool) -> None:
        self._fields = fields
        self._plain = plain
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
            if is_variable(x):
                self._visit(child, (*path, key), named, below, state, labels)
                continue
            no_label = kind is not None or hasattr(key, "idx") or (self._plain and part.isdecimal())
            inner = f"{below}.{part}" if below else part
            self._visit(child, (*path, key), (*named, key), inner, state, labels if no_label else (*labels, part))
        is_list = parts == [str(i) for i in range(len(parts))]
        if is_list and before[0] == len(self._states) and before[1] < len(state.leaves):
            state.lengths[below] = len(parts)

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


def is_state(cls: Any) -> bool:
    """Whether `cls` is a class of named tuples with fields whose name ends in "State", as Optax's do."""
    return bool(getattr(cls, "_fields", ())) and cls.__name__.endswith("State")


def _classes(tree: PyTree) -> list[Any]:
    """Return the classes of all nodes and leaves of a tree."""
    found: list[Any] = []

    def see(x: object) -> bool:
        found.append(type(x))
        return False

    jtu.tree_flatten(tree, is_leaf=see)
    return found
