"""Match the leaves of both trees: by name, or, for what is in optimizer states, by three more rules.

In optimizer states, names depend on the wrappers. For example, from the state of `adam(schedule)` to that of
`partition({"body": chain(clip(1.0), adam(schedule)), "head": sgd(0.1)}, …)`, where "body" has the parameter w:

| a new leaf | gets | rule |
|---|---|---|
| `mu.w` in the ScaleByAdamState of "body" | `0.mu.w`, the only `mu.w` of a ScaleByAdamState | 2 |
| `count` in the same state | `0.count`, which is in the state that `mu.w` comes from | 3 |
| `count` in the ScaleByScheduleState of "body" | `1.count`, the only `count` of a ScaleByScheduleState | 2 |

The rules use these words:

| word | what it means |
|---|---|
| slot | what is the same in both trees: keys above the outermost state; class of the innermost, field, parameter |
| label | the keys between the outermost state and the innermost, without indices and fields: that of a `partition` |
| moment | an array of a named parameter, such as `mu.w` |
| candidates | the old values that have the slot of a leaf |
| claimants | the new leaves that have its slot, itself included, and are not matched by name |

1. By name: a leaf gets the old value of its name, unless both are in optimizer states. An old value counts as outside
   if `rename` spells out the name of its outermost state, or more of its name.
2. By label: the candidates with the label of the leaf. If none has it, the candidates whose labels the new tree no
   longer has. If labels x, y became x, z, then z gets the values of y. A hyperparameter gets only those with its label.
3. By moments: if the state of the leaf has moments, and it is neither one nor a hyperparameter, the candidates in the
   states that these moments come from.

`rename` changes the slot of an old value, and not its state. What it moves to a slot replaces what was there.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of, is_number, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._compare.diff import tree_diff
from treekit._graft.leaves import Leaf, Slot, StateNode
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
    # 1. By name.
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    by_name = {leaf: [x] for leaf, x in pairs if not (leaf.slot.is_in_state and x.slot.is_in_state)}

    # 2. By label: the leaves in states that have no value yet. Moments are decided first.
    in_states = [leaf for leaf in new if leaf.slot.is_in_state and leaf not in by_name]
    claimants, candidates = _by_slot(in_states), _by_slot(x for x in old.values() if x.slot.is_in_state)
    choices = [_by_label(leaf, claimants[leaf.slot], candidates.get(leaf.slot, [])) for leaf in in_states]
    shifted_keys = {choice.leaf.slot.keys for choice in choices if choice.has_moved_moment}

    def decide(choice: _Choice) -> list[Source]:
        return _decided(choice, fresh, names_decide=choice.leaf.slot.keys not in shifted_keys)

    moments = {choice.leaf: decide(choice) for choice in choices if choice.leaf.slot.is_moment}

    # 3. By moments: the old states that these come from decide about the rest.
    origins = _origins(by_name | moments)

    def by_moments(choice: _Choice) -> _Choice:
        leaf = choice.leaf
        if leaf.state not in origins or leaf.slot.is_hyperparam:
            return choice
        return _Choice(leaf, [leaf], [x for x in candidates.get(leaf.slot, []) if x.state in origins[leaf.state]])

    others = {choice.leaf: decide(by_moments(choice)) for choice in choices if not choice.leaf.slot.is_moment}

    matches = by_name | moments | others
    return {leaf: matches[leaf] for leaf in new if matches.get(leaf)}


class _Choice(NamedTuple):
    """A new leaf in a state, the claimants of the old values that its rule leaves, and these candidates."""

    leaf: Leaf
    claimants: list[Leaf]
    candidates: list[Source]

    @property
    def has_moved_moment(self) -> bool:
        """Whether the leaf is a moment whose only candidate has another name.

        Then a wrapper has shifted indices, so that `1.count` of the old tree may be that of another state.
        """
        names = [x.name for x in self.candidates]
        return self.leaf.slot.is_moment and len(names) == 1 and names != [self.leaf.name]


def _by_slot(leaves: Iterable[X]) -> dict[Slot, list[X]]:
    """Index leaves by their slots; of old ones, what `rename` has moved to a slot replaces what was there."""
    by_slot: dict[Slot, list[X]] = defaultdict(list)
    for x in leaves:
        by_slot[x.slot].append(x)

    def is_from_rename(x: X) -> bool:  # its slot has new keys, and its state the old ones
        return x.state.keys != x.slot.keys

    return {slot: [x for x in xs if is_from_rename(x)] or xs for slot, xs in by_slot.items()}


def _by_label(leaf: Leaf, claimants: list[Leaf], candidates: list[Source]) -> _Choice:
    """Return the claimants and candidates that rule 2 leaves, of those with the slot of the leaf."""
    label = leaf.state.labels
    new_labels, old_labels = {x.state.labels for x in claimants}, {x.state.labels for x in candidates}
    if label in old_labels or leaf.slot.is_hyperparam:
        new_labels = old_labels = {label}
    else:
        new_labels, old_labels = new_labels - old_labels, old_labels - new_labels
    return _Choice(
        leaf,
        [x for x in claimants if x.state.labels in new_labels],
        [x for x in candidates if x.state.labels in old_labels],
    )


def _origins(matches: Matches) -> dict[StateNode, set[StateNode]]:
    """Return the old states that the moments of each new state come from."""
    origins: dict[StateNode, set[StateNode]] = defaultdict(set)
    for leaf, sources in matches.items():
        if leaf.slot.is_moment:
            origins[leaf.state].update(x.state for x in sources)
    return origins


def _decided(choice: _Choice, fresh: Container[str], names_decide: bool) -> list[Source]:
    """Return the sources that a leaf uses up, of which it gets the first unless it is fresh.

    - If claimants and candidates have the same names, names may decide.
    - Otherwise, a fresh leaf, which keeps its own value, uses up all candidates.
    - Several candidates are decided if their values are equal, as those of counts often are. Those of moments are not:
      they are equal by chance, as zeros are.
    - There must be as many candidates as claimants that are not fresh, or more. But an array of shape () of integers or
      bools, such as a count, may be for several leaves.

    Args:
        choice: the leaf, and what its rule leaves.
        fresh: the names of the new leaves that keep their values.
        names_decide: whether names decide if both trees have the same.
    """
    leaf, claimants, candidates = choice
    named = {x.name: x for x in candidates}
    if names_decide and named.keys() == {x.name for x in claimants}:
        return [named[leaf.name]]
    if leaf.name in fresh or not candidates:
        return candidates
    dtype = dtype_of(leaf.value)
    is_count = np.ndim(leaf.value) == 0 and is_number(dtype) and not issubdtype(dtype, jnp.inexact)  # and not a key
    are_enough = is_count or sum(x.name not in fresh for x in claimants) <= len(candidates)
    are_equal = len(candidates) == 1 or (not leaf.slot.is_moment and _have_same_values(candidates))
    if are_enough and are_equal:
        return candidates
    raise _undecided(claimants, candidates)


def _have_same_values(sources: Sequence[Source]) -> bool:
    """Whether sources, each a leaf or several that `rename` stacks, are known to be equal."""
    values = [[leaf.value for leaf in x.leaves] for x in sources]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for xs in values for x in xs):
        return False
    return not any(tree_diff(values[0], xs) for xs in values[1:])


def _undecided(claimants: Sequence[Leaf], candidates: Sequence[Source]) -> ValueError:
    """Return the error of leaves that no rule decides, with a `rename` of one state to another."""
    starts = [(old.state.start, new.state.start) for old in candidates for new in claimants]
    # To rename a state to its own name matches what is in it by name.
    pattern, target = (f"{start}**" for start in next((pair for pair in starts if pair[0] != pair[1]), starts[0]))
    mine, its = "".join(f"\n  {x.name}" for x in claimants), "".join(f"\n  {x.path}" for x in candidates)
    return ValueError(
        f"graft cannot decide which old value goes where. The new leaves:{mine}\nThe old leaves:{its}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )
