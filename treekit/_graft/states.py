"""Match the leaves of optimizer states.

Their names depend on the wrappers. So a new leaf and an old one match if they have the same slot: the keys above the
outermost state, the class of the state, the field and the parameter. If several old leaves have that slot:

1. An array of a parameter, such as a moment, gets the old one with the same label. If no old one has its label, all
   labels that both trees have are left out.
2. The rest of a state, such as its count, follows the moments in it. In a state without moments, such as that of a
   schedule, it follows the moments with the same label. If one of the trees has no moments, rule 1 applies.
3. A hyperparameter only gets an old one with the same label, since a new group has its own.
4. If several are left, names decide, if they are the same in both trees and no moment with this label has moved to
   another name. If names do not decide, all old values must be equal, as counts often are.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.key_path import name_below
from treekit._base.predicates import is_traced
from treekit._graft.names import Leaf, Matches, Names, Slot, Source, StateNode
from treekit._tree_diff import tree_diff

X = TypeVar("X", Leaf, Source)


def match_states(new: Sequence[Leaf], old: Iterable[Source], by_name: Matches) -> Matches:
    """Map new leaves to the old values that they get; `by_name` has those that are matched by name.

    Raises:
        ValueError: several old values are possible; the message lists them.
    """
    matches = dict(by_name)
    in_states = [leaf for leaf in new if leaf.slot.kind and leaf not in by_name]
    ours, theirs = _by_slot(in_states), _by_slot(source for source in old if source.slot.kind)
    choices = {x: _of_label(x, ours[x.slot], theirs.get(x.slot, [])) for x in in_states if x.slot.is_of_param}
    moved = {x.state.group for x, (_, sources) in choices.items() if len(sources) == 1 and sources[0].name != x.name}
    for leaf, (rivals, sources) in choices.items():
        matches[leaf] = _decide(leaf, rivals, sources, moved)

    # The old states of the moments of each state, and of each group.
    origins: dict[object, set[StateNode]] = defaultdict(set)
    old_keys = {slot.keys for slot in theirs if slot.is_of_param}
    for leaf in [leaf for leaf in new if leaf.slot.is_of_param and leaf.slot.keys in old_keys]:
        for holder in (leaf.state, leaf.state.group):
            origins[holder].update(source.state for source in matches.get(leaf, ()))

    for leaf in [leaf for leaf in in_states if leaf not in choices]:
        rivals, sources, labels = ours[leaf.slot], theirs.get(leaf.slot, []), {leaf.state.labels}
        if leaf.state in origins:
            rivals, sources = [leaf], [x for x in sources if x.state in origins[leaf.state]]
        elif leaf.state.group in origins:
            nearby = {state.labels for state in origins[leaf.state.group]}
            rivals, sources = _labelled(rivals, labels), _labelled(sources, nearby)
        else:
            rivals, sources = _of_label(leaf, rivals, sources)
        if leaf.slot.below.startswith("hyperparams"):
            sources = _labelled(sources, labels)
        matches[leaf] = _decide(leaf, rivals, sources, moved)
    return {leaf: sources for leaf, sources in matches.items() if sources}


def _by_slot(leaves: Iterable[X]) -> dict[Slot, list[X]]:
    """Index leaves by their slots; where `rename` gives a state the keys of another, it displaces that."""
    by_slot: dict[Slot, list[X]] = defaultdict(list)
    for x in leaves:
        by_slot[x.slot].append(x)
    return {slot: [x for x in xs if x.state.keys != slot.keys] or xs for slot, xs in by_slot.items()}


def _of_label(leaf: Leaf, rivals: Sequence[Leaf], sources: Sequence[Source]) -> tuple[list[Leaf], list[Source]]:
    """Return those with the label of a leaf; if no source has it, those with labels that only one tree has."""
    ours, theirs = {x.state.labels for x in rivals}, {x.state.labels for x in sources}
    labels = {leaf.state.labels} if leaf.state.labels in theirs else ours ^ theirs
    return _labelled(rivals, labels), _labelled(sources, labels)


def _labelled(leaves: Iterable[X], labels: Container[Names]) -> list[X]:
    return [x for x in leaves if x.state.labels in labels]


def _decide(leaf: Leaf, rivals: Sequence[Leaf], sources: list[Source], moved: Container[object]) -> list[Source]:
    """Return the source of a leaf: that of its name, if names decide; or the only one; or several of equal values.

    Args:
        leaf: the leaf.
        rivals: the new leaves that the sources are for, this one included.
        sources: the old values that it may get. If it is fresh and names do not decide, it uses them all.
        moved: the groups whose moments have other names in the old tree, so that names do not decide.
    """
    named = {x.name: x for x in sources}
    if leaf.state.group not in moved and named.keys() == {x.name for x in rivals}:
        return [named[leaf.name]]
    if leaf.is_fresh or not sources:
        return sources
    is_counter = np.ndim(leaf.value) == 0 and not issubdtype(dtype_of(leaf.value), jnp.inexact)
    are_enough = is_counter or sum(not x.is_fresh for x in rivals) <= len(sources)
    if are_enough and (len(sources) == 1 or (not leaf.slot.is_of_param and _have_same_values(sources))):
        return sources
    pairs = [(x.state.name, y.state.name) for x in sources for y in rivals]
    pattern, target = (name_below(x, "**") for x in next((pair for pair in pairs if pair[0] != pair[1]), pairs[0]))
    mine, its = "".join(f"\n  {x.name}" for x in rivals), "".join(f"\n  {x.path}" for x in sources)
    raise ValueError(
        f"graft cannot decide which old value goes where. The new leaves:{mine}\nThe old leaves:{its}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )


def _have_same_values(sources: Sequence[Source]) -> bool:
    values = [[leaf.value for leaf in x.origins] for x in sources]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for xs in values for x in xs):
        return False
    return not any(tree_diff(values[0], xs) for xs in values[1:])
