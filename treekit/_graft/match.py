"""Match the leaves of two trees for `graft`: by key path, and in optimizer states by the class of the state."""

from collections.abc import Container, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treekit._diff.diff import tree_diff
from treekit._graft.states import Leaf, State

_HYPERPARAMS = "hyperparams."  # those of a new label are not carried over


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
        found = _find(state, below, equals, new)
        if not found and not below.startswith(_HYPERPARAMS):
            left = [x for x in others if not _is_of_param(below) or (x.kind, x.labels, x.place, below) not in claimed]
            found = _find(state, below, left, new)
        if found:
            yield leaf, found


def _find(state: State, below: str, candidates: list[State], new: list[State]) -> list[Leaf]:
    found = [x for x in candidates if below in x.leaves]
    placed = [x.leaves[below] for x in found if x.place == state.place]
    has_no_place = not placed and any(x.place[1] != state.place[1] for x in found)
    if has_no_place and _is_counter(state, below):
        placed, has_no_place = [x.leaves[below] for x in found], False
    if has_no_place or not _same_values(placed):
        targets = [x for x in new if (x.kind, x.labels) == (state.kind, state.labels) and below in x.leaves]
        raise ValueError(_undecided(below, targets, found))
    return placed


def _undecided(below: str, new: list[State], old: list[State]) -> str:
    new_listed, old_listed = ("".join(f"\n  {x.leaves[below].name}" for x in states) for states in (new, old))
    pairs = [tuple(f"{name}.**" if name else "**" for name in (x.name, y.name)) for x in old for y in new]
    pattern, target = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return (
        f"graft cannot decide which old value goes where. The new leaves:{new_listed}\nThe old leaves:{old_listed}\n"
        f"Decide with rename, such as rename={{{pattern!r}: {target!r}}}"
    )


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


def _is_counter(state: State, below: str) -> bool:
    """Whether this is a number such as the count of a schedule, in a state that belongs to no parameters."""
    return "." not in below and not np.ndim(state.leaves[below].value) and not any(map(_is_of_param, state.leaves))


def _same_values(leaves: list[Leaf]) -> bool:
    def same(x: object) -> bool:
        abstract = isinstance(x, (Tracer, jax.ShapeDtypeStruct))
        return x is leaves[0].value or not (abstract or tree_diff(leaves[0].value, x))

    return all(same(leaf.value) for leaf in leaves)
