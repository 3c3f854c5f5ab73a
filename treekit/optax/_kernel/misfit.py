"""Does a state fit an optimizer and its params? It is compared with the one that `init` makes."""

import contextlib
from collections.abc import Callable
from typing import Any

import optax

from treekit._base.dtype import is_weak, issubdtype, shape_of
from treekit._base.flax import is_nnx_module, is_of_bare_values
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import is_array, is_traced
from treekit._base.tree import has_node
from treekit._base.types import OptState, Params, Updates
from treekit._compare.differences import TreeDiff
from treekit._compare.structure import structure_diff
from treekit._text.describe import describe, describe_error
from treekit.optax._kernel.trained import trained


class StateError(ValueError, TypeError):
    """A state is not one that this optimizer makes for these params; the message says what differs."""


def explained(
    error: Exception, init: Callable[[Any], Any], state: OptState, updates: Updates, params: Params
) -> Exception:
    """Return the error to raise where an update raised one: a better one, or the same, perhaps with a note.

    The first row that holds:

    | the state | the error |
    |---|---|
    | does not fit | a StateError that lists what differs |
    | any other, without the params | itself; with a note if the state does not fit the integers among the updates |
    | any other, with gradients that have more axes than their params | itself, with a note on batches |
    | cannot be compared, and has the holes of a mask | itself, with a note on functions that look at values |
    | any other | itself |

    Args:
        error: the error of an update with this state.
        init: the `init` of the core.
        state: the state that the core received.
        updates: the updates that it received.
        params: the params that it received, or None.
    """
    if isinstance(error, StateError):
        return error
    like = trained(updates) if params is None else params  # first without integers, as for a state made for params
    differences = _differences(init, state, like)
    if differences:
        return _state_error(differences, _hint(params), f"\nIt led to {describe_error(error)}")
    if params is None:
        if _differences(init, state, updates):
            error.add_note("Without the params, integers are gradients too, and the state has nothing for them")
        return error
    for x, param in zip(jtu.tree_leaves(updates), jtu.tree_leaves(params), strict=False):
        if len(shape_of(x)) > len(shape_of(param)):
            error.add_note(
                f"A gradient is {describe(x)}, and its param {describe(param)}. Is its first axis a batch? Then pass "
                "the mean over it, or use a transformation that takes the gradients of single examples"
            )
            break
    fit_is_unknown = differences is None
    if fit_is_unknown and has_node(state, _is_masked):
        error.add_note(
            "Does a function that returns a mask or labels look at values? It must select "
            "the same leaves in init and in each update: let it look at shapes and dtypes"
        )
    return error


def _hint(params: Params) -> str:
    """Say what else may be wrong where a state does not fit."""
    if params is None:
        return " Pass the params too, if it was made for all of them: update(updates, state, params)."
    if is_nnx_module(params):
        return (
            " The params are a module of Flax NNX: pass it to init too, or nnx.state(model, nnx.Param) to both. If "
            "only static values differ, init saw it in another mode: call model.train() before init and before the "
            "gradient."
        )
    if is_of_bare_values(params):
        return (
            " An nnx.Optimizer passes the values of variables to update, without their classes: its `wrt` must select "
            "variables that are trained, such as nnx.Param, and no others."
        )
    if any(is_weak(x) and is_traced(x) for x in jtu.tree_leaves(params)):
        return (
            " In the params, jax.jit has made an array of a Python number, which init received as a number: make it an "
            "array before init, with jnp.asarray, or jit the step with equinox.filter_jit, which does not convert it."
        )
    return ""


def check_fit_if_integers(init: Callable[[Any], Any], state: OptState, params: Params) -> None:
    """Raise a StateError if a state that has an array of integers or bools is not one that `init` makes.

    Most misfits raise an error in the update, which is then `explained`. Two would not: the counts of an ensemble,
    which have an axis for its members, would be broadcast; and integers in place of moments would be computed with as
    floats. Both are arrays of integers with axes, so only states that have such an array are compared.
    """
    if params is None or not any(map(_is_integers, jtu.tree_leaves(state))):  # asked first, since that is fast
        return
    if differences := _differences(init, state, params):
        raise _state_error(differences)


def _is_integers(x: object) -> bool:
    """Whether a leaf is an array with axes, of integers, bools or keys."""
    return is_array(x) and x.ndim > 0 and not issubdtype(x.dtype, jnp.inexact)


def _is_masked(x: object) -> bool:
    return isinstance(x, optax.MaskedNode)


def _differences(init: Callable[[Any], Any], state: OptState, params: Params) -> TreeDiff | None:
    """Return where a state differs from the one that `init` makes in structure, shape, or kind of dtype.

    None if that is not known, since `init` fails or cannot be traced, as with a mask that looks at values.
    """
    with contextlib.suppress(Exception):
        wanted = untyped.eval_shape(init, params)
        return structure_diff(state, wanted)
    return None


def _state_error(differences: TreeDiff, hint: str = "", cause: str = "") -> StateError:
    return StateError(
        "the state does not fit this optimizer and these params. Make it again with init, or carry over what fits: "
        f"treekit.graft(optimizer.init(params), state, strict=False)[0].{hint}\nstate | what init makes:\n"
        f"{differences}{cause}"
    )
