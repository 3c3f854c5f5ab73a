"""Match the leaves of both trees: by name, unless both are in optimizer states.

In these, names depend on the wrappers. So a new leaf and an old one match if they have the same slot: the keys above
the outermost state, the class of the state, the field and the parameter. If several old leaves have that slot:

1. An array of a parameter, such as a moment, gets the old one with the same label. If no old one has its label, all
   labels that both trees have are left out.
2. The rest of a state, such as its count, follows the moments in it. In a state without moments, such as that of a
   schedule, it follows the moments with the same label. If one of the trees has no moments, rule 1 applies.
3. A hyperparameter only gets an old one with the same label, since a new group has its own.
4. If several are left, names decide, if they are the same in both trees and no moment with this label has moved to
   another name. If names do not decide, all old values must be equal, as counts often are.
"""

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


def match_leaves(new: Sequence[Leaf], old: Mapping[str, Source], fresh: Container[str]) -> Matches:
    """Map new leaves, in order, to the old values that they get; those named in `fresh` keep theirs.

    Raises:
        ValueError: several old values are possible; the message lists them.
    """
    pairs = [(leaf, old[leaf.name]) for leaf in new if leaf.name in old]
    by_name = {leaf: [source] for leaf, source in pairs if not (leaf.slot.kind and source.slot.kind)}
    in_states = [leaf for leaf in new if leaf.slot.kind and leaf not in by_name]
    ours, theirs = _by_slot(in_states), _by_slot(source for source in old.values() if source.slot.kind)
    options = {x: _of_label(x, ours[x.slot], theirs.get(x.slot, [])) for x in in_states if x.slot.is_of_param}
    moved = {x.state.group for x, (_, sources) in options.items() if len(sources) == 1 and sources[0].name != x.name}
    moments = {leaf: _decide(leaf, *option, moved, fresh) for leaf, option in options.items()}

    # The old states of the moments of each state, and of each group.
    origins: dict[object, set[StateNode]] = defaultdict(set)
    old_keys = {slot.keys for slot in theirs if slot.is_of_param}
    for leaf in [leaf for leaf in new if leaf.slot.is_of_param and leaf.slot.keys in old_keys]:
        for holder in (leaf.state, leaf.state.group):
            origins[holder].update(source.state for source in moments.get(leaf, by_name.get(leaf, ())))

    rest: Matches = {}
    for leaf in [leaf for leaf in in_states if leaf not in options]:
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
        rest[leaf] = _decide(leaf, rivals, sources, moved, fresh)
    matches = by_name | moments | rest
    return {leaf: matches[leaf] for leaf in new if matches.get(leaf)}


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


def _decide(
    leaf: Leaf, rivals: Sequence[Leaf], sources: list[Source], moved: Container[object], fresh: Container[str]
) -> list[Source]:
    """Return the source of a leaf: that of its name, if names decide; or the only one; or several of equal values.

    Args:
        leaf: the leaf.
        rivals: the new leaves that the sources are for, this one included.
        sources: the old values that it may get. If it is fresh and names do not decide, it uses them all.
        moved: the groups whose moments have other names in the old tree, so that names do not decide.
        fresh: the names of the new leaves that keep their values.
    """
    named = {x.name: x for x in sources}
    if leaf.state.group not in moved and named.keys() == {x.name for x in rivals}:
        return [named[leaf.name]]
    if leaf.name in fresh or not sources:
        return sources
    is_counter = np.ndim(leaf.value) == 0 and not issubdtype(dtype_of(leaf.value), jnp.inexact)
    are_enough = is_counter or sum(x.name not in fresh for x in rivals) <= len(sources)
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
