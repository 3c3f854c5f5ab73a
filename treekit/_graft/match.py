"""Which old leaf does a new one match?

By name; and between optimizer states under the same keys, by the class of the state, the field and the parameter, and
by the label if both trees have it.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

import jax
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.key_path import nearest
from treekit._base.predicates import is_traced
from treekit._graft.names import Leaf, Names, RenamedTree, State
from treekit._tree_diff import tree_diff

Place = tuple[object, ...]  # the keys above a state, its class, and a name below it


def match(new: list[Leaf], old: RenamedTree, fresh: Container[Leaf]) -> dict[Leaf, list[Leaf]]:
    """Map new leaves to the old leaves from which they get their values.

    A leaf may have several sources of equal value, such as the counts of groups that become one group.

    Args:
        new: the leaves of the new tree.
        old: the leaves of the old tree, renamed.
        fresh: the new leaves that keep their own values. They do not compete for old ones.

    Raises:
        ValueError: several old leaves could be meant; the message lists them.
    """
    by_name = {leaf.name: leaf for leaf in sorted(old.leaves.values(), key=lambda leaf: leaf.rule is not None)}
    found: dict[Leaf, list[Leaf]] = {}
    for leaf in new:
        same = by_name.get(leaf.name)
        if leaf.name in old.exact:
            found[leaf] = [old.exact[leaf.name]]
        elif same is not None and not (leaf.state and same.state):
            found[leaf] = [same]
    _match_states([leaf for leaf in new if leaf.state], [x for x in old.leaves.values() if x.state], fresh, found)
    return found


def _match_states(new: list[Leaf], old: list[Leaf], fresh: Container[Leaf], found: dict[Leaf, list[Leaf]]) -> None:
    """Match the arrays of parameters, such as moments, first; the rest of a state, such as its count, follows them."""
    new_at, old_at = _by_place(leaf for leaf in new if leaf not in found), _by_place(old)
    params: dict[object, set[str]] = defaultdict(set)  # of each state, and of each group of new states
    for leaf in filter(_is_param, [*new, *old]):
        params[leaf.state].add(leaf.below)
    for leaf in filter(_is_param, new):
        params[_group(leaf)].add(leaf.below)
    numbers: dict[frozenset[str], int] = {}
    kinds = {key: numbers.setdefault(frozenset(names), len(numbers)) for key, names in params.items()}
    have_params = {leaf.names for leaf in filter(_is_param, old)}
    sources: dict[object, set[State | None]] = defaultdict(set)  # of their moments
    moved: set[object] = set()  # groups whose moments have other names
    for leaf in sorted(new, key=_is_param, reverse=True):
        if leaf not in found:
            rivals, candidates = new_at[_place(leaf)], old_at.get(_place(leaf), [])
            if _is_param(leaf) or _group(leaf) not in kinds or leaf.names not in have_params:
                rivals, candidates = _with_its_label(leaf, rivals, candidates)
            elif leaf.state in kinds:
                rivals, candidates = [leaf], [x for x in candidates if x.state in sources[leaf.state]]
            else:  # a schedule's count follows the moments next to it
                labels = {state.labels for state in sources[_group(leaf)] if state}
                rivals = [x for x in rivals if _group(x) == _group(leaf)]
                candidates = [x for x in candidates if _labels(x) in labels]
            if leaf.below.startswith("hyperparams"):  # a group with a new label has its own
                candidates = [x for x in candidates if _labels(x) == _labels(leaf)]
            if candidates:
                by_name = None if _group(leaf) in moved else kinds
                found[leaf] = candidates if leaf in fresh else _decide(leaf, rivals, candidates, fresh, by_name)
        if _is_param(leaf):
            for source in found.get(leaf, ()):
                sources[leaf.state].add(source.state)
                sources[_group(leaf)].add(source.state)
                moved.update([_group(leaf)] * (source.name != leaf.name))


def _with_its_label(leaf: Leaf, rivals: list[Leaf], candidates: list[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
    """Return the leaves with the label of this one if both trees have it; else those with labels of only one tree."""
    ours, theirs = {_labels(x) for x in rivals}, {_labels(x) for x in candidates}
    common = ours & theirs
    if _labels(leaf) in common:
        ours = theirs = {_labels(leaf)}
    else:
        ours, theirs = ours - common, theirs - common
    return [x for x in rivals if _labels(x) in ours], [x for x in candidates if _labels(x) in theirs]


def _decide(
    leaf: Leaf,
    rivals: list[Leaf],
    candidates: list[Leaf],
    fresh: Container[Leaf],
    kinds: Mapping[object, int] | None,
) -> list[Leaf]:
    """Return the source of a leaf: the only one, or that of its name, or several whose values are equal.

    States with the same parameters are of one kind. Without `kinds`, names do not decide.
    """
    named = {x.name: x for x in candidates}
    if kinds is not None and len(rivals) == len(candidates) and all(x.name in named for x in rivals):
        # States that were swapped have each other's names; that their parameters differ shows it.
        pairs = [(kinds.get(x.state), kinds.get(named[x.name].state)) for x in rivals]
        are_alike = all(mine == pairs[0][0] and its == pairs[0][1] for mine, its in pairs)
        if are_alike or all(mine == its for mine, its in pairs):
            return [named[leaf.name]]
    is_counter = np.ndim(leaf.value) == 0 and not issubdtype(dtype_of(leaf.value), jnp.inexact)
    are_enough = is_counter or sum(x not in fresh for x in rivals) <= len(candidates)
    if are_enough and (len(candidates) == 1 or (not _is_param(leaf) and _same_values(candidates))):
        return candidates
    raise ValueError(_undecided(rivals, candidates))


def _by_place(leaves: Iterable[Leaf]) -> dict[Place, list[Leaf]]:
    """Index leaves by their places; where `rename` gives a state the keys of another, it replaces it."""
    found: dict[Place, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        found[_place(leaf)].append(leaf)
    return {place: [x for x in xs if x.state and x.names != x.state.names] or xs for place, xs in found.items()}


def _place(leaf: Leaf) -> Place:
    return leaf.names, leaf.state and leaf.state.kind, leaf.below


def _group(leaf: Leaf) -> tuple[Names, Names]:
    return leaf.names, _labels(leaf)


def _labels(leaf: Leaf) -> Names:
    return leaf.state.labels if leaf.state else ()


def _is_param(leaf: Leaf) -> bool:
    """Whether a leaf in a state belongs to a parameter with a name, such as mu.layers.0.w."""
    return "." in leaf.below and not leaf.below.startswith("hyperparams")


def _same_values(leaves: list[Leaf]) -> bool:
    values = [[x.value for x in leaf.origins] for leaf in leaves]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for each in values for x in each):
        return False
    return not any(tree_diff(values[0], other) for other in values[1:])


def _undecided(new: list[Leaf], old: list[Leaf]) -> str:
    def state_of(leaf: Leaf) -> str:
        state = leaf.origins[0].state
        return f"{state.name}.**" if state and state.name else "**"

    listed = ["".join(f"\n  {x.origins[0].name}" for x in leaves) for leaves in (new, old)]
    pairs = [(state_of(x), state_of(y)) for x in old for y in new]
    pattern, target = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return (
        f"graft cannot decide which old value goes where. The new leaves:{listed[0]}\nThe old leaves:{listed[1]}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )


def plain_states(new: Iterable[Leaf], old: Iterable[Leaf]) -> list[str]:
    """Say what to do if the old tree has dicts for the states of these new leaves."""
    if any(leaf.state for leaf in old) or not any(leaf.state for leaf in new):
        return []
    return [
        "If the old tree has plain dicts for optimizer states, they are matched by name alone. If the wrappers have "
        "changed, restore it into old_optimizer.init(old_params) first."
    ]


def nothing_in_common(new: list[Leaf], old: list[Leaf]) -> str:
    """Say why no leaf of two trees matches."""
    start = "the trees have no leaf in common. "
    names, states = [leaf.name for leaf in new], {leaf.state.kind: leaf.state for leaf in reversed(new) if leaf.state}
    for leaf in old:
        state = leaf.state and states.get(leaf.state.kind)
        if state and leaf.state and state.names != leaf.state.names:
            before, after = (".".join((*x.names, "**")) for x in (leaf.state, state))
            return (
                f"{start}Both have optimizer states, but under other keys, which are names: use "
                f"rename={{{before!r}: {after!r}}}"
            )
        if leaf.name in names:
            return (
                f"{start}Both have {leaf.name}, but optimizer states are matched by their class; from one class to "
                "another, use rename with full paths"
            )
    found = (
        f"{start}Old: {old[0].name or '(the root)'}. The nearest new paths: {nearest(old[0].name, names)}. Use rename."
    )
    return " ".join([found, *plain_states(new, old)])
