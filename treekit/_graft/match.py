"""Match the leaves of optimizer states for `graft`: by the class of the state, the field and the parameter."""

from collections import defaultdict
from collections.abc import Container, Iterable

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._graft.leaf import Leaf, Value
from treekit._graft.states import State
from treekit._tree_diff import tree_diff

Place = tuple[object, object, str]  # the keys above a state, its class, and a path below it


def match_states(new: list[State], old: list[State], known: Container[Leaf]) -> dict[Leaf, list[Leaf]]:
    """Map leaves in the states of the new tree to the old leaves from which they get their values.

    The arrays of parameters, such as moments, are matched first. They tell which states belong together, and the rest
    of a state, such as its count of steps, follows. States without parameters, such as the count of a schedule, belong
    to the parameters of the states around them. A leaf may have several sources of equal value, such as the counts of
    groups that become one group.

    Args:
        new: the states of the new tree.
        old: the states of the old tree.
        known: new leaves whose sources are already known.

    Raises:
        ValueError: several leaves could be meant; the message lists them.
    """
    return _Match(new, old, known).found


class _Match:
    def __init__(self, new: list[State], old: list[State], known: Container[Leaf]) -> None:
        self.found: dict[Leaf, list[Leaf]] = {}
        self._new_at, self._old_at = _places(new), _places(old)
        self._params = _params_of([*new, *old])
        self._around = _params_around(new, self._params) | _params_around(old, self._params)
        for state in new:
            self._match_params(state, known)
        for state in new:
            self._match_rest(state, known)

    def _match_params(self, state: State, known: Container[Leaf]) -> None:
        for below in self._params[state]:
            leaf = state.leaves[below]
            place = state.names, state.kind, below
            if leaf in known or place not in self._old_at:
                continue
            rivals, candidates = self._new_at[place], self._old_at[place]
            labels = {x.labels for x in rivals}, {x.labels for x in candidates}
            if state.labels in labels[1]:
                rivals, candidates = (_labelled(x, state.labels) for x in (rivals, candidates))
            else:  # from a label under which the new tree no longer has the parameter
                rivals = [x for x in rivals if x.labels not in labels[1]]
                candidates = [x for x in candidates if x.labels not in labels[0]]
            if candidates:
                self.found[leaf] = [self._paired(state, rivals, candidates, below).leaves[below]]

    def _paired(self, state: State, rivals: list[State], candidates: list[State], below: str) -> State:
        """Return the one of several old states that belongs to a new one: that with the same parameters."""
        if len(rivals) == len(candidates) == 1:
            return candidates[0]
        params = self._around
        for alike in (params[state], None):
            ours, theirs = ([x for x in xs if alike in (None, params[x])] for xs in (rivals, candidates))
            is_one_kind = len({params[x] for x in ours}) == len({params[x] for x in theirs}) == 1
            if is_one_kind and len(ours) == len(theirs):
                return theirs[ours.index(state)]
        raise ValueError(_undecided(below, rivals, candidates))

    def _match_rest(self, state: State, known: Container[Leaf]) -> None:
        of_params = set(self._params[state])
        rest = [(below, leaf) for below, leaf in state.leaves.items() if below not in of_params]
        origins = dict.fromkeys(x.state for below in self._params[state] for x in self._sources(state, below))
        for below, leaf in rest:
            if leaf in known:
                continue
            if self._params[state]:
                found = [x for x in origins if below in x.leaves]
                rivals = [state]
            else:
                rivals, found = self._related(state, below)
            found = [x for x in found if x.labels == state.labels or not _is_hyperparameter(below)]
            if not found:
                continue
            if not _same_values([x.leaves[below] for x in found]):
                found = [self._paired(state, rivals, found, below)]
            self.found[leaf] = [x.leaves[below] for x in found]

    def _sources(self, state: State, below: str) -> list[Leaf]:
        return self.found.get(state.leaves[below], [])

    def _related(self, state: State, below: str) -> tuple[list[State], list[State]]:
        """Return new and old states that may be this one, which has no parameters, by the parameters around them."""
        place = state.names, state.kind, below
        around, candidates = self._around, self._old_at.get(place, [])

        def alike(x: State) -> bool:
            is_unknown = not around[x] or not around[state]
            return x.labels == state.labels and (is_unknown or bool(around[x] & around[state]))

        moved = [x for x in candidates if x.labels != state.labels and around[x] & around[state]]
        return [x for x in self._new_at[place] if alike(x)], [x for x in candidates if alike(x)] or moved


def _places(states: list[State]) -> dict[Place, list[State]]:
    """Index states by the places of their leaves; where `rename` gives a state the keys of another, it replaces it."""
    found: dict[Place, list[State]] = defaultdict(list)
    for state in states:
        for below in state.leaves:
            found[state.names, state.kind, below].append(state)
    return {place: [x for x in xs if x.renamed] or xs for place, xs in found.items()}


def _labelled(states: Iterable[State], labels: tuple[str, ...]) -> list[State]:
    return [x for x in states if x.labels == labels]


def _params_of(states: list[State]) -> dict[State, list[str]]:
    """Return the leaves of each state that belong to a parameter: mu.layers.0.w; or mu, if the params are an array."""
    params = {x: [below for below in x.leaves if "." in below and not _is_hyperparameter(below)] for x in states}
    have_paths = {x.names for x, found in params.items() if found}
    for state in states:
        if state.names not in have_paths:
            leaves = state.leaves.items()
            params[state] = [below for below, x in leaves if not (_is_hyperparameter(below) or _is_counter(x.value))]
    return params


def _params_around(states: list[State], params: dict[State, list[str]]) -> dict[State, frozenset[str]]:
    """Return the paths of the parameters of each state; if it has none, those of the states around it."""
    found: dict[object, set[str]] = defaultdict(set)
    for state in states:
        paths = {below.partition(".")[2] for below in params[state]}
        for scope in _scopes(state):
            found[scope] |= paths
    return {x: frozenset(next((found[scope] for scope in _scopes(x) if found[scope]), ())) for x in states}


def _scopes(state: State) -> list[object]:
    """Return a state, the states around it, and the keys above them."""
    out: list[object] = []
    around: State | None = state
    while around is not None:
        out.append(around)
        around = around.parent
    return [*out, state.names]


def _is_hyperparameter(below: str) -> bool:
    """Whether this is a hyperparameter in the state of `inject_hyperparams`, which a new label does not take over."""
    return below.startswith("hyperparams")


def _is_counter(x: Value) -> bool:
    return np.ndim(x) == 0 and not issubdtype(dtype_of(x), jnp.inexact)


def _same_values(leaves: list[Leaf]) -> bool:
    values = [[x.value for x in leaf.origins] for leaf in leaves]
    if len(leaves) == 1 or all(x is y for other in values for x, y in zip(values[0], other, strict=False)):
        return True
    return not any(
        any(isinstance(x, (Tracer, jax.ShapeDtypeStruct)) for x in other) or tree_diff(values[0], other)
        for other in values
    )


def _undecided(below: str, new: list[State], old: list[State]) -> str:
    new_listed, old_listed = (
        "".join(f"\n  {x.leaves[below].origins[0].name}" for x in states) for states in (new, old)
    )
    pairs = [tuple(f"{name}.**" if name else "**" for name in (x.name, y.name)) for x in old for y in new]
    pattern, target = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return (
        f"graft cannot decide which old value goes where. The new leaves:{new_listed}\nThe old leaves:{old_listed}\n"
        f"Decide with rename, such as rename={{{pattern!r}: {target!r}}}"
    )
