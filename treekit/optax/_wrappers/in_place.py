"""A step of `MultiSteps`: its updates take the memory of the accumulator."""

import functools
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Bool

from treekit._base.dtype import promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped, varying_axes, varying_over
from treekit._base.types import OptState, PyTree
from treekit.optax._wrappers.run_if import is_known, run_if
from treekit.optax._wrappers.traced import trace


def run_step_if(
    should_step: Any, accumulate: Callable[..., Any], inner_step: Callable[..., Any], state: OptState, acc: list[Any]
) -> tuple[Any, Any, Any]:
    """Run `inner_step` if `should_step` is true, else only accumulate.

    The updates take the place of the accumulator, which is not needed after the step. If they had memory of their own,
    each step that only accumulates would have to fill it with zeros. So one list of arrays, `places`, is the
    accumulator before the loop, and the updates after it:

    | | if the step was run | if not |
    |---|---|---|
    | `state`, after the loop | the new one | the old one |
    | `places`, after the loop | the updates | the accumulator before this step |
    | `sums` | not used | the accumulator after this step |
    | returned | the updates; zeros for the accumulator | zeros for the updates; the accumulator |

    Args:
        should_step: whether to run the step; a bool of shape ().
        accumulate: maps the accumulator before this step to the one after it, of the same shapes and dtypes.
        inner_step: maps a state and the accumulator before this step to updates and a new state of the same structure
            and dtypes. The updates have an array of its shape, or None, for each array of the accumulator.
        state: the state.
        acc: the arrays of the accumulator before this step.

    Returns:
        The updates, zero if the step was not run; the state; the accumulator, zero if the step was run.
    """
    if is_known(should_step):
        if should_step:
            updates, new_state = inner_step(state, acc)
            return updates, new_state, [jnp.zeros_like(x) for x in acc]
        likes = untyped.eval_shape(inner_step, state, acc)[0]
        held = [None if like is None else jnp.zeros_like(x, like.dtype) for like, x in zip(likes, acc, strict=True)]
        return held, state, accumulate(acc)

    # If the devices of a shard_map disagree about `should_step`, so they do about the state and the accumulator.
    leaves, treedef = jtu.tree_flatten((state, acc))
    state, acc = treedef.unflatten([varying_over(x, varying_axes(should_step)) for x in leaves])
    step, consts = trace(inner_step, state, acc)
    likes = step.like[0]
    # In a dtype that holds the update too; most accumulators have such a dtype already.
    places = [
        x if like is None or like.dtype == x.dtype else x.astype(promoted_dtype(x, like))
        for x, like in zip(acc, likes, strict=True)
    ]

    def as_accumulator(places: list[Any]) -> list[Any]:
        return [place.astype(x.dtype) for place, x in zip(places, acc, strict=True)]

    def body(carry: PyTree) -> Any:
        state, places = carry
        updates, state = step(state, as_accumulator(places), consts=consts)
        return state, [place if u is None else u.astype(place.dtype) for place, u in zip(places, updates, strict=True)]

    state, places = run_if(should_step, body, (state, in_own_memory(places)))
    # If it did not run, this step only accumulates. The sum is computed here, and by the loop too when it runs: XLA
    # then adds and applies the updates in one pass over memory on TPUs and GPUs
    # (tests/accelerators/test_multi_steps.py).
    sums = accumulate(as_accumulator(places))
    only_accumulates = jnp.logical_not(should_step)
    updates = [
        None if like is None else zero_if(only_accumulates, place).astype(like.dtype)
        for place, like in zip(places, likes, strict=True)
    ]
    return updates, state, [zero_if(should_step, x) for x in sums]


def in_own_memory(arrays: list[Any]) -> list[Any]:
    """Return arrays that a loop may overwrite, for arguments of the program: on CPUs, copies of them.

    There, XLA would copy an argument in every step, slowly, if what the loop returns is read twice; an operation that
    changes nothing gives the loop an array of its own (JAX 0.10.2, tests/optax/whole/test_cost.py). On TPUs and GPUs
    the loop changes the argument itself.
    """
    out: list[Any] = lax.platform_dependent(arrays, cpu=_copied, default=list)
    return out


def _copied(arrays: list[Any]) -> list[Any]:
    never = lax.optimization_barrier(jnp.zeros((), bool))  # as a constant, XLA would remove the operation
    return [zero_if(never, x) for x in arrays]


@functools.partial(untyped.jit, inline=True)
def zero_if(flag: Bool[Array, ""], x: Array) -> Any:
    """Return zeros if a flag is true, else the array.

    Traced once for each shape; inlined, since XLA copies the arguments of a call on CPUs (JAX 0.10.2,
    tests/optax/whole/test_cost.py).
    """
    return lax.select(flag, jnp.zeros_like(x), x)
