"""Run an inner step on some steps only, in the memory that is there."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core

from treekit._dtype import wider
from treekit._jax import jnp, jtu, lax, untyped

Step = Callable[..., tuple[Any, Any]]
Form = Callable[..., tuple[Any, Any, Any]]


def step_if(full: Any, inner_step: Step, state: Any, acc: Any) -> tuple[Any, Any, Any]:
    """`inner_step(state, acc)`, where `full` is true.

    Args:
        full: whether to run the step; a bool of shape ().
        inner_step: maps a state and what is accumulated to updates and a new state of the same structure and dtypes.
        state: the state.
        acc: what is accumulated.

    Returns:
        The updates, zero where the step was not run; the state; the accumulator, zero where the step was run.
    """
    # Traced once. What inner_step closes over becomes an argument, so that no form below closes over a tracer.
    jaxpr, (like, _) = untyped.make_jaxpr(inner_step, return_shape=True)(state, acc)
    structure = jtu.tree_structure((like, state))

    def run(state: Any, acc: Any, consts: Any) -> tuple[Any, Any]:
        closed = jax.extend.core.ClosedJaxpr(jaxpr.jaxpr, consts)
        leaves = untyped.extend.core.jaxpr_as_fun(closed)(*jtu.tree_leaves((state, acc)))
        updates, new_state = structure.unflatten(leaves)
        return updates, new_state

    by_cond = _cond_form(run, like)
    # A rule for derivatives can hold no effects, such as the debug print of a line search.
    if jaxpr.effects or not _same_shapes(like, acc):
        return by_cond(full, state, acc, jaxpr.consts)

    def derivative(primals: Any, tangents: Any) -> Any:
        return untyped.jvp(by_cond, primals, tangents)  # a loop has none in reverse

    by_loop = untyped.custom_jvp(_loop_form(run, like))
    by_loop.defjvp(derivative)
    updates, new_state, new_acc = by_loop(full, state, acc, jaxpr.consts)
    return updates, new_state, new_acc


def _cond_form(run: Step, like: Any) -> Form:
    """As one would write it. Each branch returns the state and the updates, so one of them copies."""

    def form(full: Any, state: Any, acc: Any, consts: Any) -> tuple[Any, Any, Any]:
        def step() -> tuple[Any, Any, Any]:
            return *run(state, acc, consts), jtu.tree_map(jnp.zeros_like, acc)

        def wait() -> tuple[Any, Any, Any]:
            return jtu.tree_map(_zeros, like), state, acc

        updates, new_state, new_acc = lax.cond(full, step, wait)
        return updates, new_state, new_acc

    return form


def _loop_form(run: Step, like: Any) -> Form:
    """A loop of one turn or none: what it carries stays in its place, and a step that waits touches none of it.

    The updates come out in the place of the accumulator, which is to become zero then; so there is no place to fill
    with zeros on the steps that wait.
    """

    def form(full: Any, state: Any, acc: Any, consts: Any) -> tuple[Any, Any, Any]:
        leaves, treedef = jtu.tree_flatten(acc)
        likes = treedef.flatten_up_to(like)
        places = [x if u is None else x.astype(wider(x, u)) for x, u in zip(leaves, likes, strict=True)]

        def turn(carry: Any) -> Any:
            _, state, places = carry
            inner_acc = [place.astype(x.dtype) for place, x in zip(places, leaves, strict=True)]
            updates, new_state = run(state, treedef.unflatten(inner_acc), consts)
            new_places = [
                place if u is None else u.astype(place.dtype)
                for place, u in zip(places, treedef.flatten_up_to(updates), strict=True)
            ]
            return jnp.zeros_like(full), new_state, new_places

        def is_to_turn(carry: Any) -> Any:
            return carry[0]

        _, state, places = lax.while_loop(is_to_turn, turn, (full, state, places))
        zeroed = [jnp.where(full, 0, place).astype(x.dtype) for place, x in zip(places, leaves, strict=True)]
        updates = [
            None if u is None else jnp.where(full, place, 0).astype(u.dtype)
            for place, u in zip(places, likes, strict=True)
        ]
        return treedef.unflatten(updates), state, treedef.unflatten(zeroed)

    return form


def _same_shapes(like: Any, acc: Any) -> bool:
    leaves, treedef = jtu.tree_flatten(acc)
    return all(u is None or u.shape == x.shape for u, x in zip(treedef.flatten_up_to(like), leaves, strict=True))


def _zeros(like: Any) -> Any:
    return jnp.zeros(like.shape, like.dtype)
