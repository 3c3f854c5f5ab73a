"""Run an inner step on some steps only: traced once, in the memory that is there."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core

from treekit._dtype import wider
from treekit._jax import jnp, jtu, lax, untyped

Form = Callable[..., tuple[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced at some arguments. Running it again runs none of the Python it was made of.

    It holds none of the arrays that the function closes over, since JAX keeps it: they are given when it is run.

    Attributes:
        jaxpr: what it computes.
        like: the result, with a shape and a dtype for each array.
    """

    jaxpr: Any
    like: Any

    def __call__(self, *args: Any, consts: Any) -> Any:
        """The result at other arguments, and other arrays in the place of those closed over."""
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, consts)
        leaves = untyped.extend.core.jaxpr_as_fun(closed)(*jtu.tree_leaves(args))
        return jtu.tree_structure(self.like).unflatten(leaves)


def trace(f: Callable[..., Any], *args: Any) -> tuple[Traced, Any]:
    """A function traced at some arguments, and the arrays that it closes over."""
    closed, like = untyped.make_jaxpr(f, return_shape=True)(*args)
    return Traced(closed.jaxpr, like), closed.consts


def zeros(like: Any) -> Any:
    """Zeros for a tree of shapes, dtypes and, on a mesh with explicit axes, shardings."""
    return jtu.tree_map(jnp.zeros_like, like)


def step_if(full: Any, inner_step: Callable[..., Any], state: Any, acc: Any) -> tuple[Any, Any, Any]:
    """`inner_step(state, acc)`, where `full` is true.

    Args:
        full: whether to run the step; a bool of shape ().
        inner_step: maps a state and what is accumulated to updates and a new state of the same structure and dtypes.
        state: the state.
        acc: what is accumulated.

    Returns:
        The updates, zero where the step was not run; the state; the accumulator, zero where the step was run.
    """
    step, consts = trace(inner_step, state, acc)
    by_cond = _cond_form(step)

    def derivative(primals: Any, tangents: Any) -> Any:
        return untyped.jvp(by_cond, primals, tangents)  # a loop has none in reverse

    # A rule for derivatives can hold no effects, such as the debug print of a line search.
    if step.jaxpr.effects or not _same_shapes(step.like[0], acc):
        return by_cond(full, state, acc, consts)

    by_loop = untyped.custom_jvp(_loop_form(step))
    by_loop.defjvp(derivative)
    updates, new_state, new_acc = by_loop(full, state, acc, consts)
    return updates, new_state, new_acc


# The forms close over no array, since JAX cannot differentiate what a custom_jvp function closes over.


def _cond_form(step: Traced) -> Form:
    """As one would write it. Each branch returns the state and the updates, so one of them copies."""

    def form(full: Any, state: Any, acc: Any, consts: Any) -> tuple[Any, Any, Any]:
        def run(state: Any, acc: Any) -> tuple[Any, Any, Any]:
            return *step(state, acc, consts=consts), zeros(acc)

        def wait(state: Any, acc: Any) -> tuple[Any, Any, Any]:
            return zeros(step.like[0]), state, acc

        updates, new_state, new_acc = lax.cond(full, run, wait, state, acc)
        return updates, new_state, new_acc

    return form


def _loop_form(step: Traced) -> Form:
    """A loop of one turn or none: what it carries stays in its place, and a step that waits touches none of it.

    The updates come out in the place of the accumulator, which is to become zero then; so there is no place to fill
    with zeros on the steps that wait.

    The loop carries the places in reverse: XLA assigns memory from the last result to the first, and in their own order
    a quarter of the places would find none that is free, where nothing is donated.
    """

    def form(full: Any, state: Any, acc: Any, consts: Any) -> tuple[Any, Any, Any]:
        leaves, treedef = jtu.tree_flatten(acc)
        likes = treedef.flatten_up_to(step.like[0])
        places = [x if u is None else x.astype(wider(x, u)) for x, u in zip(leaves, likes, strict=True)]

        def turn(carry: Any) -> Any:
            _, state, reverse = carry
            places = reverse[::-1]
            inner_acc = [place.astype(x.dtype) for place, x in zip(places, leaves, strict=True)]
            updates, new_state = step(state, treedef.unflatten(inner_acc), consts=consts)
            new_places = [
                place if u is None else u.astype(place.dtype)
                for place, u in zip(places, treedef.flatten_up_to(updates), strict=True)
            ]
            return jnp.zeros_like(full), new_state, new_places[::-1]

        def is_to_turn(carry: Any) -> Any:
            return carry[0]

        _, state, reverse = lax.while_loop(is_to_turn, turn, (full, state, places[::-1]))
        parts = [
            _part_jitted(full, place, None if u is None else u.dtype, x.dtype)
            for place, u, x in zip(reverse[::-1], likes, leaves, strict=True)
        ]
        return treedef.unflatten(u for u, _ in parts), state, treedef.unflatten(acc for _, acc in parts)

    return form


def _part(full: Any, place: Any, update_dtype: Any, acc_dtype: Any) -> tuple[Any, Any]:
    """The update and the accumulator, one of which is in the place, and the other zero."""
    zero = jnp.zeros_like(place)
    update = None if update_dtype is None else lax.select(full, place, zero).astype(update_dtype)
    return update, lax.select(full, zero, place).astype(acc_dtype)


# Traced once for each shape; inline, since XLA copies what goes into a call of its own.
_part_jitted: Any = untyped.jit(_part, static_argnums=(2, 3), inline=True)


def _same_shapes(like: Any, acc: Any) -> bool:
    leaves, treedef = jtu.tree_flatten(acc)
    return all(u is None or u.shape == x.shape for u, x in zip(treedef.flatten_up_to(like), leaves, strict=True))
