"""Match the leaves of both trees: by name, or, for what is in optimizer states, by two more rules.

In optimizer states, names depend on the wrappers. For example, from the state of `adam(schedule)` to that of
`partition({"body": chain(clip(1.0), adam(schedule)), "head": sgd(0.1)}, …)`, where "body" has the parameter w:

| a new leaf | gets | rule |
|---|---|---|
| `mu.w` in the ScaleByAdamState of "body" | `0.mu.w`, the only `mu.w` of a ScaleByAdamState | 3 |
| `count` in the same state | `0.count`, which is in the state that `mu.w` comes from | 2 |
| `count` in the ScaleByScheduleState of "body" | `1.count`, the only `count` of a ScaleByScheduleState | 3 |

The rules use these words:

| word | what it means |
|---|---|
| slot | what is the same in both trees: keys above the outermost state; class of the innermost, field, parameter |
| label | the keys between the outermost state and the innermost, without indices and fields: that of a `partition` |
| moment | an array of a named parameter, such as `mu.w` |
| candidates | the old values that have the slot of a leaf |
| claimants | the new leaves that have its slot, itself included, and are not matched by name |
| to use up | to count as used, as a strict graft asks of old values; a leaf may use up several, and get one or none |

Which old value does a new leaf get? The first rule that applies:

1. By name: the one of its name, unless both are in optimizer states. An old value that `rename` matches by name, by
   the table of `Rule.slot_of`, does not count as in a state.
2. By moments: if moments of its state have old values, and it is neither a moment nor a hyperparameter, one of the
   candidates in the states that these come from. The leaf is the only claimant.
3. By label: one of the candidates with its label, for which the claimants with its label compete. If no candidate has
   it, and the leaf is not a hyperparameter, candidates and claimants are those whose labels only their own tree has: if
   labels x, y became x, z, then z gets the values of y.

Rules 2 and 3 leave candidates and claimants. Which of the candidates does it get? The first row that holds:

| | if | the leaf gets | and uses up |
|---|---|---|---|
| a | it has no candidate | none | none |
| b | candidates and claimants have the same names, and names are safe | the one of its name | this one |
| c | the leaf is fresh | none: its value is dropped | all |
| d | there is one, or all are equal, and there are enough for all claimants: a count always is | the first | all |
| e | there are others | an error | |

Names are safe unless a moment below the same keys has another name now: then a wrapper has shifted indices, so that
`1.count` of the old tree may be that of another state.

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

# The old values that new leaves use up. A leaf gets the first of them, unless it is fresh.
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
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    by_name = {leaf: [x] for leaf, x in pairs if not (leaf.slot.is_in_state and x.slot.is_in_state)}
    in_states = [leaf for leaf in new if leaf.slot.is_in_state and leaf not in by_name]
    claimants, candidates = _by_slot(in_states), _by_slot(x for x in old.values() if x.slot.is_in_state)
    by_label = {leaf: _by_label(leaf, claimants[leaf.slot], candidates.get(leaf.slot, [])) for leaf in in_states}
    # Below these keys, a wrapper has shifted indices, so names are not safe.
    shifted = {leaf.slot.above for leaf, choice in by_label.items() if choice.is_moved_moment}

    def decided(choice: _Choice) -> list[Source]:
        return _decided(choice, fresh, names_are_safe=choice.leaf.slot.above not in shifted)

    # Moments are matched first, since they decide about the rest of their states.
    moments = {leaf: decided(choice) for leaf, choice in by_label.items() if leaf.slot.is_moment}
    origins = _origins(by_name | moments)

    def by_moments_or_label(leaf: Leaf) -> _Choice:
        if leaf.state in origins and not leaf.slot.is_hyperparam:
            return _by_moments(leaf, candidates.get(leaf.slot, []), origins[leaf.state])
        return by_label[leaf]

    others = {leaf: decided(by_moments_or_label(leaf)) for leaf in in_states if not leaf.slot.is_moment}
    matches = by_name | moments | others
    return {leaf: matches[leaf] for leaf in new if matches.get(leaf)}


class _Choice(NamedTuple):
    """A new leaf in a state, and the claimants and candidates that rule 2 or 3 leaves."""

    leaf: Leaf
    claimants: list[Leaf]
    candidates: list[Source]

    @property
    def is_moved_moment(self) -> bool:
        """Whether the leaf is a moment whose only candidate has another name."""
        names = [x.name for x in self.candidates]
        return self.leaf.slot.is_moment and len(names) == 1 and names != [self.leaf.name]


def _by_slot(leaves: Iterable[X]) -> dict[Slot, list[X]]:
    """Index leaves by their slots; of old ones, what `rename` has moved to a slot replaces what was there."""
    by_slot: dict[Slot, list[X]] = defaultdict(list)
    for x in leaves:
        by_slot[x.slot].append(x)

    def is_from_rename(x: X) -> bool:  # its slot has new keys, and its state the old ones
        return x.state.above != x.slot.above

    return {slot: [x for x in xs if is_from_rename(x)] or xs for slot, xs in by_slot.items()}


def _by_moments(leaf: Leaf, candidates: list[Source], origins: Container[StateNode]) -> _Choice:
    """Apply rule 2 to a leaf: its candidates in the old states that the moments of its state come from.

    It is the only claimant: if a `partition` has split the old state, each new one gets a copy of its count.
    """
    return _Choice(leaf, [leaf], [x for x in candidates if x.state in origins])


def _origins(matches: Matches) -> dict[StateNode, set[StateNode]]:
    """Return the old states that the moments of each new state come from."""
    origins: dict[StateNode, set[StateNode]] = defaultdict(set)
    for leaf, sources in matches.items():
        if leaf.slot.is_moment:
            origins[leaf.state].update(x.state for x in sources)
    return origins


def _by_label(leaf: Leaf, claimants: list[Leaf], candidates: list[Source]) -> _Choice:
    """Apply rule 3 to the claimants and candidates that have the slot of a leaf."""
    new, old = {x.state.labels for x in claimants}, {x.state.labels for x in candidates}
    own = {leaf.state.labels}
    if own <= old or leaf.slot.is_hyperparam:  # those with its label
        of_new, of_old = own, own
    else:  # no candidate has it: those whose labels the other tree does not have
        of_new, of_old = new - old, old - new
    return _Choice(
        leaf, [x for x in claimants if x.state.labels in of_new], [x for x in candidates if x.state.labels in of_old]
    )


def _decided(choice: _Choice, fresh: Container[str], names_are_safe: bool) -> list[Source]:
    """Return the candidates that a leaf uses up, by the rows a to e."""
    leaf, claimants, candidates = choice
    if not candidates:  # a
        return []
    by_name = {x.name: x for x in candidates}
    if names_are_safe and by_name.keys() == {x.name for x in claimants}:  # b
        return [by_name[leaf.name]]
    if leaf.name in fresh:  # c; it gets none of them, since `values_of` leaves out what is fresh
        return candidates
    # A count may be for several leaves. Moments are equal by chance, as zeros are.
    dtype = dtype_of(leaf.value)
    is_count = np.ndim(leaf.value) == 0 and is_number(dtype) and not issubdtype(dtype, jnp.inexact)  # and not a key
    are_enough = is_count or sum(x.name not in fresh for x in claimants) <= len(candidates)
    are_equal = len(candidates) == 1 or (not leaf.slot.is_moment and _have_same_values(candidates))
    if are_enough and are_equal:  # d
        return candidates
    raise _undecided(claimants, candidates)  # e


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
