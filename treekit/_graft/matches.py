"""Match the leaves of both trees: by name, or, for what is in optimizer states, by three more rules.

In optimizer states, names depend on the wrappers. The rules for them use these words:

| word | what it means |
|---|---|
| slot | what is the same in both trees: keys above the outermost state; class of the innermost, field, parameter |
| label | the keys between the outermost state and the innermost, without indices and fields: that of a `partition` |
| group | the states of one label, below the same keys |
| moment | an array of a named parameter, such as `mu.w` |
| companion | any other array that is not a hyperparameter, such as `count`, and `mu` of params that are one array |
| candidates | the old values that have the slot of a leaf |
| rivals | the new leaves that have its slot, itself included, and are not matched by name |

1. By name: any leaf, unless both have a slot in an optimizer state. An old value has none there if `rename` writes out
   the name of its outermost state, or more of its name.
2. A moment gets the candidate with its label. If none has it, the candidates are those whose labels no rival has: from
   the labels x and y to x and z, the moments of z are those of y.
3. A companion gets the candidate
   a. in the old state from which the moments in its own state come;
   b. with the label from which the moments in its group come, if its own state has no moments, as that of a schedule;
   c. with its label, as in rule 2, if its group has no moments, or no old moments are below the same keys.
4. A hyperparameter gets the candidate with its label. If its group has moments, and old ones are below the same keys,
   a moment of the group must come from that label too.

For example, from `masked(inject_hyperparams(adam))`, in which labels are empty, to
`partition({"x": inject_hyperparams(adam)})`, in which they are x. Each of these leaves has one candidate, that of the
same field of the same class:

| a leaf of the new state | gets its candidate? |
|---|---|
| `ScaleByAdamState.mu.w` | yes: no rival has the label of the candidate, and no candidate has x (2) |
| `ScaleByAdamState.count` | yes: mu comes from its state (3a) |
| `InjectHyperparamsState.count` | yes: mu, which is in its group, comes from that label (3b) |
| `hyperparams.learning_rate` | no: it has another label (4) |

Each rule leaves some of the candidates, which are called sources, and the rivals that they may be for: in 3a the
leaf alone, in 3b and 4 those with its label, and so in 2 and 3c, or those whose labels no candidate has. Then:

- Names decide, if sources and rivals have the same. They do not if some moment of the group has a single source of
  another name: a wrapper may have shifted indices, so that `1.count` is that of another state in the old tree.
- Otherwise, a fresh leaf, which keeps its own value, uses up all its sources.
- Several sources are decided if their values are equal, as those of counts often are. Those of moments are not: they
  are equal by chance, as zeros are.
- There must be as many sources as rivals that are not fresh, or more. But an array of shape () of integers or bools,
  such as a count, may be for several leaves.

Anything else raises an error. A leaf without sources has no match.

`rename` changes the slot of an old value, and not its state. What it moves to a slot replaces what was there.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of, is_number, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._compare.diff import tree_diff
from treekit._graft.leaves import Group, Leaf, Names, Slot, StateNode
from treekit._graft.sources import Source

X = TypeVar("X", Leaf, Source)

# The sources of new leaves. A leaf gets the first, unless it is fresh. All of them count as used, since a strict graft
# lists the old values that nothing used: those after the first are equal to it, or the leaf might have got any of them.
Matches = dict[Leaf, list[Source]]


def match_leaves(new: Sequence[Leaf], old: Mapping[str, Source], fresh: Container[str]) -> Matches:
    """Map new leaves, in order, to the old values that they get.

    Args:
        new: the new leaves.
        old: the old values by name.
        fresh: the names of the new leaves that keep their values.

    Raises:
        ValueError: several old values are possible for a leaf, or one for several leaves; the message lists them.
    """
    by_name = _by_name(new, old)
    in_states = [leaf for leaf in new if leaf.slot.kind and leaf not in by_name]
    states = _States(in_states, _by_slot(in_states), _by_slot(x for x in old.values() if x.slot.kind), fresh)
    moments = _moments(states)
    origins = _origins(new, by_name | moments, states)  # `rename` may give a moment the whole name of another
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
    def groups_with_other_names(self) -> set[Group]:
        """The groups with a moment whose single source has another name, after `rename`: names do not decide there."""
        options = [(leaf, self.of_label(leaf)[1]) for leaf in self.leaves if leaf.slot.is_moment]
        return {leaf.state.group for leaf, sources in options if len(sources) == 1 and sources[0].name != leaf.name}

    def of_slot(self, leaf: Leaf) -> tuple[list[Leaf], list[Source]]:
        """Return the rivals and the candidates of a leaf."""
        return self.ours[leaf.slot], self.theirs.get(leaf.slot, [])

    def of_label(self, leaf: Leaf) -> tuple[list[Leaf], list[Source]]:
        """Return those with its label; if no candidate has it, those with labels that only one of the trees has."""
        rivals, candidates = self.of_slot(leaf)
        ours, theirs = {x.state.labels for x in rivals}, {x.state.labels for x in candidates}
        if leaf.state.labels in theirs:
            return _labelled(rivals, {leaf.state.labels}), _labelled(candidates, {leaf.state.labels})
        return _labelled(rivals, ours - theirs), _labelled(candidates, theirs - ours)


def _by_slot(leaves: Iterable[X]) -> dict[Slot, list[X]]:
    """Index leaves by their slots; of old ones, what `rename` has moved to a slot replaces what was there."""
    by_slot: dict[Slot, list[X]] = defaultdict(list)
    for x in leaves:
        by_slot[x.slot].append(x)

    def is_from_rename(x: X) -> bool:  # its slot has new keys, and its state the old ones
        return x.state.keys != x.slot.keys

    return {slot: [x for x in xs if is_from_rename(x)] or xs for slot, xs in by_slot.items()}


def _labelled(leaves: Iterable[X], labels: Container[Names]) -> list[X]:
    return [x for x in leaves if x.state.labels in labels]


# ------------------------------------------------------------------------------------------------------- the four rules


def _by_name(new: Iterable[Leaf], old: Mapping[str, Source]) -> Matches:
    """Match leaves by name, unless both have a slot in an optimizer state (rule 1)."""
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    return {leaf: [source] for leaf, source in pairs if not (leaf.slot.kind and source.slot.kind)}


def _moments(states: _States) -> Matches:
    """Match the arrays of parameters by their labels (rule 2)."""
    moments = [leaf for leaf in states.leaves if leaf.slot.is_moment]
    return {leaf: _decide(leaf, *states.of_label(leaf), states) for leaf in moments}


class _Origins(NamedTuple):
    """The old states from which moments come, of each new state and of each group of them.

    | a state, or a group | its entry |
    |---|---|
    | without moments, or whose moments match nothing, and no old ones are below the same keys | none |
    | with other moments that match nothing | an empty set |
    | any other | the old states of what its moments match |
    """

    of_state: Mapping[StateNode, set[StateNode]]
    of_group: Mapping[Group, set[StateNode]]


def _origins(new: Iterable[Leaf], matches: Matches, states: _States) -> _Origins:
    """Return where the moments of new states come from, given the matches of moments."""
    of_state: dict[StateNode, set[StateNode]] = defaultdict(set)
    of_group: dict[Group, set[StateNode]] = defaultdict(set)
    old_keys = {slot.keys for slot in states.theirs if slot.is_moment}
    for leaf in new:
        sources = matches.get(leaf, [])
        if leaf.slot.is_moment and (sources or leaf.slot.keys in old_keys):
            origins = {source.state for source in sources}
            of_state[leaf.state] |= origins
            of_group[leaf.state.group] |= origins
    return _Origins(of_state, of_group)


def _companions(states: _States, origins: _Origins) -> Matches:
    """Match the rest of each state but hyperparameters; it follows the moments, where there are some (rule 3)."""
    matches: Matches = {}
    for leaf in [x for x in states.leaves if not (x.slot.is_moment or x.slot.is_hyperparam)]:
        rivals, candidates = states.of_slot(leaf)
        if leaf.state in origins.of_state:
            # 3a: from where the moments in its own state come. They have decided, so no other leaf is a rival.
            rivals, sources = [leaf], [x for x in candidates if x.state in origins.of_state[leaf.state]]
        elif leaf.state.group in origins.of_group:
            # 3b: with the labels from which the moments in its group come.
            labels = {state.labels for state in origins.of_group[leaf.state.group]}
            rivals, sources = _labelled(rivals, {leaf.state.labels}), _labelled(candidates, labels)
        else:
            # 3c: its group has no moments, or no old ones are below the same keys.
            rivals, sources = states.of_label(leaf)
        matches[leaf] = _decide(leaf, rivals, sources, states)
    return matches


def _hyperparams(states: _States, origins: _Origins) -> Matches:
    """Match hyperparameters by their labels, unless the moments of their group come from other labels (rule 4)."""
    matches: Matches = {}
    for leaf in [x for x in states.leaves if x.slot.is_hyperparam]:
        label, group = leaf.state.labels, leaf.state.group
        of_moments = {state.labels for state in origins.of_group.get(group, ())}
        if group not in origins.of_group or label in of_moments:
            rivals, candidates = states.of_slot(leaf)
            matches[leaf] = _decide(leaf, _labelled(rivals, {label}), _labelled(candidates, {label}), states)
    return matches


# -------------------------------------------------------------------------------------------------- if several are left


def _decide(leaf: Leaf, rivals: Sequence[Leaf], sources: list[Source], states: _States) -> list[Source]:
    """Return the sources that a leaf uses up, of which it gets the first unless it is fresh.

    Args:
        leaf: the leaf.
        rivals: the new leaves that the sources are for, this one included.
        sources: what its rule leaves.
        states: which leaves are fresh, and which groups have other names.
    """
    named = {x.name: x for x in sources}
    names_decide = leaf.state.group not in states.groups_with_other_names and named.keys() == {x.name for x in rivals}
    if names_decide:
        return [named[leaf.name]]
    if leaf.name in states.fresh or not sources:
        return sources
    dtype = dtype_of(leaf.value)
    is_count = np.ndim(leaf.value) == 0 and is_number(dtype) and not issubdtype(dtype, jnp.inexact)  # and not a key
    are_enough = is_count or sum(x.name not in states.fresh for x in rivals) <= len(sources)
    are_equal = len(sources) == 1 or (not leaf.slot.is_moment and _have_same_values(sources))
    if are_enough and are_equal:
        return sources
    raise _undecided(rivals, sources)


def _have_same_values(sources: Sequence[Source]) -> bool:
    """Whether sources, each a leaf or several that `rename` stacks, are known to be equal."""
    values = [[leaf.value for leaf in x.leaves] for x in sources]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for xs in values for x in xs):
        return False
    return not any(tree_diff(values[0], xs) for xs in values[1:])


def _undecided(rivals: Sequence[Leaf], sources: Sequence[Source]) -> ValueError:
    """Return the error of leaves that no rule decides, with a `rename` of one state to another."""
    starts = [(source.state.start, rival.state.start) for source in sources for rival in rivals]
    # To rename a state to its own name matches what is in it by name.
    pattern, target = (f"{start}**" for start in next((pair for pair in starts if pair[0] != pair[1]), starts[0]))
    mine, its = "".join(f"\n  {x.name}" for x in rivals), "".join(f"\n  {x.path}" for x in sources)
    return ValueError(
        f"graft cannot decide which old value goes where. The new leaves:{mine}\nThe old leaves:{its}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )
