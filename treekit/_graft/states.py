"""Which old value does a new leaf get?

That of its name; and between optimizer states, that of its place: the keys above the state, its class, the field and
the parameter. The label decides if both trees have it, and the name if the states are in the same order.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._base.predicates import is_traced
from treekit._graft.names import Leaf, Names, Place, Source, State
from treekit._tree_diff import tree_diff

X = TypeVar("X", Leaf, Source)


def match(new: Sequence[Leaf], old: Mapping[str, Source], fresh: Container[Leaf]) -> dict[Leaf, list[Source]]:
    """Map new leaves to the old values that they get.

    A leaf may have several sources of equal value, such as the counts of groups that become one group.

    Args:
        new: the leaves of the new tree.
        old: the old values by name.
        fresh: the new leaves that keep their own values. They do not compete for old ones.

    Raises:
        ValueError: several old values could be meant; the message lists them.
    """
    found: dict[Leaf, list[Source]] = {}
    for leaf in new:
        same = old.get(leaf.name)
        if same is not None and not (leaf.place and same.place):
            found[leaf] = [same]
    _match_states([leaf for leaf in new if leaf.place], [x for x in old.values() if x.place], fresh, found)
    return found


def _match_states(
    new: Sequence[Leaf], old: Sequence[Source], fresh: Container[Leaf], found: dict[Leaf, list[Source]]
) -> None:
    """Match the arrays of parameters, such as moments, first; the rest of a state, such as its count, follows them."""
    new_at, old_at = _by_place(leaf for leaf in new if leaf not in found), _by_place(old)
    params = [leaf for leaf in new if _is_param(leaf)]
    with_params: set[object] = {x for leaf in params for x in (leaf.state, _group(leaf))}  # states, and groups of them
    old_with_params = {_keys(x) for x in old if _is_param(x)}
    sources: dict[object, set[State | None]] = defaultdict(set)  # of their moments
    moved: set[object] = set()  # groups whose moments have other names

    def order(leaf: Leaf) -> tuple[bool, int]:  # those with one candidate show whether a group has moved
        return not _is_param(leaf), len(old_at.get(leaf.place, ()))

    for leaf in sorted(new, key=order):
        if leaf not in found:
            rivals, candidates = new_at[leaf.place], old_at.get(leaf.place, [])
            if _is_param(leaf) or _group(leaf) not in with_params or _keys(leaf) not in old_with_params:
                # Prefer the same label; else labels that only one tree has.
                ours, theirs = set(map(_labels, rivals)), set(map(_labels, candidates))
                labels = {_labels(leaf)} if _labels(leaf) in ours & theirs else ours ^ theirs
                rivals = [x for x in rivals if _labels(x) in labels]
                candidates = [x for x in candidates if _labels(x) in labels]
            elif leaf.state in with_params:
                rivals, candidates = [leaf], [x for x in candidates if x.state in sources[leaf.state]]
            else:  # a schedule's count follows the moments next to it
                labels = {state.labels for state in sources[_group(leaf)] if state}
                rivals = [x for x in rivals if _group(x) == _group(leaf)]
                candidates = [x for x in candidates if _labels(x) in labels]
            if leaf.below.startswith("hyperparams"):  # a group with a new label has its own
                candidates = [x for x in candidates if _labels(x) == _labels(leaf)]
            if candidates:
                by_name = _group(leaf) not in moved
                found[leaf] = candidates if leaf in fresh else _decide(leaf, rivals, candidates, fresh, by_name)
        if _is_param(leaf):
            for source in found.get(leaf, ()):
                sources[leaf.state].add(source.state)
                sources[_group(leaf)].add(source.state)
                moved.update([_group(leaf)] * (source.name != leaf.name))


def _decide(
    leaf: Leaf, rivals: Sequence[Leaf], candidates: list[Source], fresh: Container[Leaf], by_name: bool
) -> list[Source]:
    """Return the source of a leaf: that of its name, if names decide, or the only one, or several of equal values."""
    named = {x.name: x for x in candidates}
    if by_name and len(rivals) == len(candidates) and all(x.name in named for x in rivals):
        return [named[leaf.name]]
    is_counter = np.ndim(leaf.value) == 0 and not issubdtype(dtype_of(leaf.value), jnp.inexact)
    are_enough = is_counter or sum(x not in fresh for x in rivals) <= len(candidates)
    if are_enough and (len(candidates) == 1 or (not _is_param(leaf) and _have_same_values(candidates))):
        return candidates
    raise ValueError(_undecided(rivals, candidates))


def _by_place(leaves: Iterable[X]) -> dict[Place | None, list[X]]:
    """Index leaves by their places; where `rename` gives a state the keys of another, it replaces it."""
    found: dict[Place | None, list[X]] = defaultdict(list)
    for x in leaves:
        found[x.place].append(x)
    return {place: [x for x in xs if x.state and x.state.keys != _keys(x)] or xs for place, xs in found.items()}


def _keys(x: Leaf | Source) -> Names:
    return x.place.keys if x.place else ()


def _labels(x: Leaf | Source) -> Names:
    return x.state.labels if x.state else ()


def _group(leaf: Leaf) -> tuple[Names, Names]:
    return _keys(leaf), _labels(leaf)


def _is_param(x: Leaf | Source) -> bool:
    """Whether a leaf in a state belongs to a parameter with a name, such as mu.layers.0.w."""
    return "." in x.below and not x.below.startswith("hyperparams")


def _have_same_values(sources: Sequence[Source]) -> bool:
    values = [[leaf.value for leaf in x.origins] for x in sources]
    if any(is_traced(x) or isinstance(x, jax.ShapeDtypeStruct) for xs in values for x in xs):
        return False
    return not any(tree_diff(values[0], xs) for xs in values[1:])


def _undecided(new: Sequence[Leaf], old: Sequence[Source]) -> str:
    def state_of(x: Leaf | Source) -> str:
        return f"{x.state.name}.**" if x.state and x.state.name else "**"

    pairs = [(state_of(x), state_of(y)) for x in old for y in new]
    pattern, target = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    mine, its = ("".join(f"\n  {name}" for name in names) for names in ([x.name for x in new], [x.path for x in old]))
    return (
        f"graft cannot decide which old value goes where. The new leaves:{mine}\nThe old leaves:{its}\n"
        f"Drop old ones with None in rename, or keep new ones with fresh, or pass rename={{{pattern!r}: {target!r}}}"
    )
