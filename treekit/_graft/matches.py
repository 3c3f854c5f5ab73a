"""Match the leaves of both trees by four rules. The first precedes the others, which concern disjoint leaves.

In optimizer states, names depend on the wrappers. So there, a new leaf and an old one match if they have the same slot:
the keys above the outermost state, the class of the state, the field and the parameter. Several old leaves may have it.

1. By name: any leaf, unless both are in optimizer states.
2. Moments, the arrays of a parameter: the old one with the same label. If no old one has its label, all labels that
   both trees have are left out.
3. Companions, the rest of a state, such as its count, follow the moments in it. In a state without moments, such as
   that of a schedule, they follow the moments with the same label. If one of the trees has no moments, the labels
   decide, as in rule 2.
4. Hyperparameters only get an old one with the same label, since a new group has its own. If there are moments with
   this label, and none of them comes from an old state with it, hyperparameters get no old value.

If several are left, names decide, if they are the same in both trees and no moment with this label has moved to another
name. If names do not decide, all old values must be equal, as counts often are.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._compare.diff import tree_diff
from treekit._graft.leaves import Leaf, Names, Slot, StateNode
from treekit._graft.names import Source

X = TypeVar("X", Leaf, Source)


# The old values of new leaves. Those after the first are equal to it, as counts often are.
Matches = dict[Leaf, list[Source]]
# By a state, or by a group of states with one label: the old states that its moments come from.
_Origins = Mapping[object, set[StateNode]]


def match_leaves(new: Sequence[Leaf], old: Mapping[str, Source], fresh: Container[str]) -> Matches:
    """Map new leaves, in order, to the old values that they get; those named in `fresh` keep theirs.

    Raises:
        ValueError: several old values are possible; the message lists them.
    """
    by_name = _by_name(new, old)
    in_states = [leaf for leaf in new if leaf.slot.kind and leaf not in by_name]
    states = _States(in_states, _by_slot(in_states), _by_slot(x for x in old.values() if x.slot.kind), fresh)
    moments = _moments(states)
    origins = _origins(new, by_name | moments, states)
    matches = by_name | moments | _companions(states, origins) | _hyperparams(states, origins)
    return {leaf: matches[leaf] for leaf in new if matches.get(leaf)}


@dataclasses.dataclass(frozen=True)
class _States:
    """What is in optimizer states.

    Attributes:
        leaves: the new leaves that rule 1 does not match.
        ours: these by their slots.
        theirs: the old values by their slots.
        fresh: the names of the new leaves that keep their values.
    """

    leaves: Sequence[Leaf]
    ours: Mapping[Slot, list[Leaf]]
    theirs: Mapping[Slot, list[Source]]
    fresh: Container[str]

    @functools.cached_property
    def moved(self) -> set[object]:
        """The groups whose moments have other names in the old tree, so that names do not decide."""
        options = [(leaf, self.of_label(leaf)[1]) for leaf in self.leaves if leaf.slot.is_of_param]
        return {leaf.state.group for leaf, sources in options if len(sources) == 1 and sources[0].name != leaf.name}

    def of(self, leaf: Leaf) -> tuple[list[Leaf], list[Source]]:
        """Return the new leaves and the old values that have the slot of a leaf."""
        return self.ours[leaf.slot], self.theirs.get(leaf.slot, [])

    def of_label(self, leaf: Leaf) -> tuple[list[Leaf], list[Source]]:
        """Return those with the label of a leaf; if no old value has it, those with labels that only one tree has."""
        rivals, sources = self.of(leaf)
        ours, theirs = {x.state.labels for x in rivals}, {x.state.labels for x in sources}
        labels = {leaf.state.labels} if leaf.state.labels in theirs else ours ^ theirs
        return _labelled(rivals, labels), _labelled(sources, labels)


def _by_name(new: Iterable[Leaf], old: Mapping[str, Source]) -> Matches:
    """Match leaves by name, unless both are in optimizer states."""
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    return {leaf: [source] for leaf, source in pairs if not (leaf.slot.kind and source.slot.kind)}


def _moments(states: _States) -> Matches:
    """Match the arrays of parameters by their labels."""
    moments = [leaf for leaf in states.leaves if leaf.slot.is_of_param]
    return {leaf: _decide(leaf, *states.of_label(leaf), states) for leaf in moments}


def _origins(new: Iterable[Leaf], matches: Matches, states: _States) -> _Origins:
    """Return the old states that moments come from, for those with old moments below the same keys."""
    origins: dict[object, set[StateNode]] = defaultdict(set)
    old_keys = {slot.keys for slot in states.theirs if slot.is_of_param}
    for leaf in [leaf for leaf in new if leaf.slot.is_of_param and leaf.slot.keys in old_keys]:
        for holder in (leaf.state, leaf.state.group):
            origins[holder].update(source.state for source in matches.get(leaf, ()))
    return origins


def _companions(states: _States, origins: _Origins) -> Matches:
    """Match the rest of each state, which follows its moments."""
    matches: Matches = {}
    for leaf in [x for x in states.leaves if not (x.slot.is_of_param or x.slot.is_hyperparam)]:
        rivals, sources = states.of(leaf)
        if leaf.state in origins:
            rivals, sources = [leaf], [x for x in sources if x.state in origins[leaf.state]]
        elif leaf.state.group in origins:
            nearby = {state.labels for state in origins[leaf.state.group]}
            rivals, sources = _labelled(rivals, {leaf.state.labels}), _labelled(sources, nearby)
        else:
            rivals, sources = states.of_label(leaf)
        matches[leaf] = _decide(leaf, rivals, sources, states)
    return matches


def _hyperparams(states: _States, origins: _Origins) -> Matches:
    """Match hyperparameters by their labels, unless the moments with this label had another one."""
    matches: Matches = {}
    for leaf in [x for x in states.leaves if x.slot.is_hyperparam]:
        label, group = leaf.state.labels, leaf.state.group
        if group not in origins or any(state.labels == label for state in origins[group]):
            rivals, sources = states.of(leaf)
            matches[leaf] = _decide(leaf, _labelled(rivals, {label}), _labelled(sources, {label}), states)
    return matches


def _by_slot(leaves: Iterable[X]) -> dict[Slot, list[X]]:
    """Index leaves by their slots; a state that `rename` moved there replaces the one that was there."""
    by_slot: dict[Slot, list[X]] = defaultdict(list)
    for x in leaves:
        by_slot[x.slot].append(x)
    return {slot: [x for x in xs if x.state.keys != slot.keys] or xs for slot, xs in by_slot.items()}


def _labelled(leaves: Iterable[X], labels: Container[Names]) -> list[X]:
    return [x for x in leaves if x.state.labels in labels]


def _decide(leaf: Leaf, rivals: Sequence[Leaf], sources: list[Source], states: _States) -> list[Source]:
    """Return the source of a leaf: that of its name, if names decide; or the only one; or several of equal values.

    Args:
        leaf: the leaf.
        rivals: the new leaves that the sources are for, this one included.
        sources: the old values that it may get. If names do not decide, a fresh leaf returns all of them, as used.
        states: which leaves are fresh, and which states have moved.
    """
    named = {x.name: x for x in sources}
    if leaf.state.group not in states.moved and named.keys() == {x.name for x in rivals}:
        return [named[leaf.name]]
    if leaf.name in states.fresh or not sources:
        return sources
    is_counter = np.ndim(leaf.value) == 0 and not issubdtype(dtype_of(leaf.value), jnp.inexact)
    are_enough = is_counter or sum(x.name not in states.fresh for x in rivals) <= len(sources)
    if are_enough and (len(sources) == 1 or (not leaf.slot.is_of_param and _have_same_values(sources))):
        return sources
    pairs = [(x.state.start, y.state.start) for x in sources for y in rivals]
    pattern, target = (f"{x}**" for x in next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))
    mine, its = "".join(f"\n  {x.name}" for x in rivals), "".join(f"\n  {x.path}" for x in sources)
    raise ValueError(
        f"graft cannot decide which old value goes where. The new leaves:{mine}\nThe old leaves:{its}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )


def _have_same_values(sources: Sequence[Source]) -> bool:
    values = [[leaf.value for leaf in x.leaves] for x in sources]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for xs in values for x in xs):
        return False
    return not any(tree_diff(values[0], xs) for xs in values[1:])
