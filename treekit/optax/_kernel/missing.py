"""A missing gradient: which parameters have no update, and what stays as it was in the state.

| an array of the state | without an update of its parameter |
|---|---|
| a copy or an average of the params, or the memory of L-BFGS | changes |
| any other, such as a moment | stays |
| the value of the loss that a line search found | becomes inf, for unknown: not all params get there |
| of no parameter, such as a count | changes |
"""

from collections.abc import Collection, Sequence
from typing import Any

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.states import is_known_code
from treekit._base.types import OptState
from treekit._names.key_path import path_text
from treekit.optax._kernel.state_map import Entry


def without_update(missing: set[int], entries: Sequence[Entry]) -> set[int]:
    """Return which of the parameters without a gradient have no update; one in a round has one.

    There, a missing gradient counts as a zero. If one array has the sum of all, as inside of `flatten`, all of them do.
    """
    if any(map(_is_sum_of_all, entries)):
        return set()
    return missing - {x.param for x in entries if x.in_rounds}


def hold(held: Collection[int | None], entries: Sequence[Entry], state: OptState, new_state: OptState) -> Any:
    """Return a new state in which what belongs to parameters that have no update is as the table says.

    Raises:
        ValueError: a state of Optax has an array of moments for several params, as inside of `flatten`.
    """
    if not held:
        return new_state
    olds, treedef = jtu.tree_flatten(state)
    for entry, old in zip(entries, olds, strict=True):
        is_moment = entry.owner is not None and is_known_code(entry.owner) and not entry.of_no_param
        if entry.param is None and is_moment and shape_of(old) and issubdtype(dtype_of(old), jnp.inexact):
            raise ValueError(
                f"a gradient is missing, and {path_text(entry.path)} of the state belongs to several params, as in "
                "optax.flatten, so what belongs to one of them cannot be kept as it is. Pass zeros for it"
            )

    def chosen(entry: Entry, old: Any, new: Any) -> Any:
        if entry.field in entry.known.at_next_params:
            return jnp.full_like(new, jnp.inf)
        return old if entry.param in held and entry.field not in entry.known.always_changes else new

    return treedef.unflatten(map(chosen, entries, olds, jtu.tree_leaves(new_state)))


def _is_sum_of_all(x: Entry) -> bool:
    """Whether an array has the sums of a round, which need float32, for several params, as inside of `flatten`."""
    return x.param is None and x.known.takes_rounds and x.field in x.known.at_least_float32
