"""Accumulate, and run an inner step on some steps only: traced once, in the memory that is there."""

import functools
from collections.abc import Callable
from typing import Any

from treekit._dtype import cast_like, promoted_dtype
from treekit._jax import jnp, jtu, lax, untyped
from treekit.optax._traced import Traced, trace, zeros


def run_step_if(
    should_step: Any, accumulate: Callable[..., Any], inner_step: Callable[..., Any], state: Any, acc: Any
) -> tuple[Any, Any, Any]:
    """Accumulate, and run `inner_step` on what is accumulated where `should_step` is true.

    Args:
        should_step: whether to run the step; a bool of shape ().
        accumulate: maps what was accumulated before this step to what is now, of the same shapes and dtypes.
        inner_step: maps a state and what is accumulated to updates and a new state of the same structure and dtypes.
            There is an update, or None, for each array that is accumulated.
        state: the state.
        acc: what was accumulated before this step, array by array.

    Returns:
        The updates, zero where the step was not run; the state; what is accumulated, zero where the step was run.
    """
    # The arrays that the two close over are arguments: JAX cannot differentiate what a custom_jvp function closes over.
    add, add_consts = trace(accumulate, acc)
    step, step_consts = trace(inner_step, state, acc)

    def by_cond(should_step: Any, state: Any, acc: Any, add_consts: Any, step_consts: Any) -> Any:
        def run(state: Any, acc: Any) -> Any:
            return *step(state, acc, consts=step_consts), zeros(acc)

        def wait(state: Any, acc: Any) -> Any:
            return zeros(step.like[0]), state, acc

        return lax.cond(should_step, run, wait, state, add(acc, consts=add_consts))

    def by_loop(should_step: Any, state: Any, acc: Any, add_consts: Any, step_consts: Any) -> Any:
        def now(acc: Any) -> Any:
            return add(acc, consts=add_consts)

        def inner(state: Any, acc: Any) -> Any:
            return step(state, acc, consts=step_consts)

        def add_before(state: Any, acc: Any) -> Any:
            return run_in_place(should_step, inner, step.like[0], state, now(acc))

        def add_in_each(state: Any, acc: Any) -> Any:
            def add_and_step(state: Any, acc: Any) -> Any:
                return inner(state, in_place(should_step, now, acc))

            updates, state, old_acc = run_in_place(should_step, add_and_step, step.like[0], state, acc)
            return updates, state, [_zero_jitted(should_step, x) for x in now(old_acc)]

        # On GPUs and TPUs the sum is computed behind the loop, where it becomes one pass over memory with the updates,
        # and again within the loop. CPUs make a pass for each operation, so they compute it once, before the loop.
        return lax.platform_dependent(state, acc, cpu=add_before, default=add_in_each)

    form = with_derivative_of(by_cond, by_loop, step) if _same_shapes(step.like[0], acc) else by_cond
    updates, new_state, new_acc = form(should_step, state, acc, add_consts, step_consts)
    return updates, new_state, new_acc


def in_place(should_step: Any, f: Callable[..., Any], x: Any) -> Any:
    """`f(x)` where `should_step` is true, else `x`, in the memory of `x`.

    A loop of one turn or none: XLA updates in place what a loop carries, and no turn touches none of it.
    """

    def runs(carry: Any) -> Any:
        return carry[0]

    def turn(carry: Any) -> Any:
        return jnp.zeros_like(should_step), f(carry[1])

    return lax.while_loop(runs, turn, (should_step, x))[1]


def update_if(
    flag: Any, update: Callable[..., Any], updates: Any, state: Any, otherwise: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """`update(state)` where `flag` is true, else the state as it is and `otherwise` of each of the updates.

    Args:
        flag: a bool of shape ().
        update: maps a state to updates and a new state of the same structure and dtypes. It is traced once.
        updates: the updates that `update` was made of.
        state: the state.
        otherwise: maps one of `updates` to what comes out in its place, in the dtype of the one that `update` returns.
            Where that is None, as for a leaf that is frozen, None comes out.
    """
    # What `update` closes over is given to the branches: jit would keep it alive in its cache.
    traced, consts = trace(update, state)
    treedef = jtu.tree_structure(updates)
    likes = treedef.flatten_up_to(traced.like[0])

    def run(state: Any, consts: Any) -> Any:
        return traced(state, consts=consts)

    def skip(state: Any, _: Any) -> Any:
        others = map(otherwise, jtu.tree_leaves(updates))
        kept = [None if like is None else cast_like(x, like) for like, x in zip(likes, others, strict=True)]
        return treedef.unflatten(kept), state

    new_updates, new_state = lax.cond(flag, run, skip, state, consts)
    return new_updates, new_state


def run_if(flag: Any, f: Callable[..., Any], carry: Any) -> Any:
    """`f(carry)` where `flag` is true, else `carry`, in the memory of `carry`; it can be differentiated.

    Args:
        flag: a bool of shape ().
        f: maps a tree of arrays to one of the same structure, shapes and dtypes.
        carry: the tree.
    """
    traced, consts = trace(f, carry)

    def run(consts: Any, carry: Any) -> Any:
        return traced(carry, consts=consts)

    def wait(carry: Any) -> Any:
        return carry

    def by_cond(flag: Any, carry: Any, consts: Any) -> Any:
        return lax.cond(flag, functools.partial(run, consts), wait, carry)

    def by_loop(flag: Any, carry: Any, consts: Any) -> Any:
        return in_place(flag, functools.partial(run, consts), carry)

    return with_derivative_of(by_cond, by_loop, traced)(flag, carry, consts)


def with_derivative_of(by_cond: Callable[..., Any], by_loop: Callable[..., Any], traced: Traced) -> Callable[..., Any]:
    """`by_loop`, which has no derivative in reverse mode, with that of `by_cond`.

    Args:
        by_cond: a function that can be differentiated.
        by_loop: another that computes the same.
        traced: what both run. A rule for derivatives can have no effects, such as the debug print of a line search.
    """
    if traced.jaxpr.effects:
        return by_cond

    def derivative(primals: Any, tangents: Any) -> Any:
        return untyped.jvp(by_cond, primals, tangents)

    form = untyped.custom_jvp(by_loop)
    form.defjvp(derivative)
    out: Callable[..., Any] = form
    return out


def run_in_place(should_step: Any, step: Callable[..., Any], like: Any, state: Any, acc: Any) -> tuple[Any, Any, Any]:
    """`step(state, acc)` where `should_step` is true, in the memory of its arguments.

    The updates take the place of the accumulator, which nobody needs then. A place of their own would have to be filled
    with zeros on the steps that wait.

    Args:
        should_step: whether to run the step; a bool of shape ().
        step: maps a state and an accumulator to updates and a new state.
        like: the shape and dtype of each update; None where there is none.
        state: the state.
        acc: the accumulator, array by array.

    Returns:
        The updates, zero where the step was not run; the state; the accumulator, zero where the step was run.
    """
    places = [x if u is None else x.astype(promoted_dtype(x, u)) for x, u in zip(acc, like, strict=True)]

    def turn(carry: Any) -> Any:
        state, reverse = carry
        places = reverse[::-1]
        updates, new_state = step(state, [place.astype(x.dtype) for place, x in zip(places, acc, strict=True)])
        pairs = zip(places, updates, strict=True)
        return new_state, [place if u is None else u.astype(place.dtype) for place, u in pairs][::-1]

    # In reverse, since XLA assigns memory from the last result to the first: in their own order a quarter of the places
    # would find no memory that is free, where nothing is donated.
    state, reverse = in_place(should_step, turn, (state, places[::-1]))
    parts = [
        _part_jitted(should_step, place, None if u is None else u.dtype, x.dtype)
        for place, u, x in zip(reverse[::-1], like, acc, strict=True)
    ]
    return [u for u, _ in parts], state, [acc for _, acc in parts]


def _part(should_step: Any, place: Any, update_dtype: Any, acc_dtype: Any) -> tuple[Any, Any]:
    """The update and the accumulator, one of which is in the place, and the other zero."""
    zero = jnp.zeros_like(place)
    update = None if update_dtype is None else lax.select(should_step, place, zero).astype(update_dtype)
    return update, lax.select(should_step, zero, place).astype(acc_dtype)


# Traced once for each shape; inline, since XLA copies what goes into a call of its own.
_part_jitted: Any = untyped.jit(_part, static_argnums=(2, 3), inline=True)


def _zero(should_step: Any, x: Any) -> Any:
    """Zeros where `should_step` is true."""
    return lax.select(should_step, jnp.zeros_like(x), x)


_zero_jitted: Any = untyped.jit(_zero, inline=True)


def _same_shapes(like: list[Any], acc: list[Any]) -> bool:
    return all(u is None or u.shape == x.shape for u, x in zip(like, acc, strict=True))
