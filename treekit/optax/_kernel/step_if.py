"""Run a step only if a flag is true: traced once, and without additional memory.

`run_step_if` is for updates of `MultiSteps`, `run_if` for the whole steps of `MultiSteps` and `apply_if_finite`, and
`update_if` for the updates of the other wrappers. tests/accelerators and tests/optax/test_cost.py count the memory.
"""

import functools
from collections.abc import Callable
from typing import Any

from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from treekit._base.dtype import cast_like, promoted_dtype, strengthen
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.types import OptState, PyTree, Updates
from treekit.optax._kernel.traced import Traced, trace, zeros


def run_step_if(
    should_step: Any,
    accumulate: Callable[..., Any],
    inner_step: Callable[..., Any],
    state: OptState,
    acc: list[Any],
) -> tuple[Any, Any, Any]:
    """Accumulate, and run `inner_step` on the accumulated values if `should_step` is true.

    Args:
        should_step: whether to run the step; a bool of shape ().
        accumulate: maps the accumulator before this step to the one after it, of the same shapes and dtypes.
        inner_step: maps a state and an accumulator to updates and a new state of the same structure and dtypes. The
            updates have an array or None for each array of the accumulator.
        state: the state.
        acc: the arrays of the accumulator before this step.

    Returns:
        The updates, zero if the step was not run; the state; the accumulator, zero if the step was run.
    """
    # Arrays that these functions close over are arguments: JAX cannot differentiate closures of a custom_jvp function.
    add, add_consts = trace(accumulate, acc)
    step, step_consts = trace(inner_step, state, acc)

    def by_cond(
        should_step: Bool[Array, ""], state: OptState, acc: list[Any], add_consts: list[Any], step_consts: list[Any]
    ) -> Any:
        def run(state: OptState, acc: list[Any]) -> Any:
            return *step(state, acc, consts=step_consts), zeros(acc)

        def wait(state: OptState, acc: list[Any]) -> Any:
            return zeros(step.like[0]), state, acc

        return lax.cond(should_step, run, wait, state, add(acc, consts=add_consts))

    def by_loop(
        should_step: Bool[Array, ""], state: OptState, acc: list[Any], add_consts: list[Any], step_consts: list[Any]
    ) -> Any:
        def now(acc: list[Any]) -> Any:
            return add(acc, consts=add_consts)

        def inner(state: OptState, acc: list[Any]) -> Any:
            return step(state, acc, consts=step_consts)

        def add_before(state: OptState, acc: list[Any]) -> Any:
            return run_in_place(should_step, inner, step.like[0], state, now(acc))

        def add_in_each(state: OptState, acc: list[Any]) -> Any:
            # The step always runs here, but a second loop keeps XLA from adding again for each reader of the sum, such
            # as a clip by norm.
            def add_and_step(state: OptState, acc: list[Any]) -> Any:
                return inner(state, in_place(should_step, now, acc))

            updates, state, old_acc = run_in_place(should_step, add_and_step, step.like[0], state, acc)
            return updates, state, [_zero_jitted(should_step, x) for x in now(old_acc)]

        # On GPUs and TPUs, the sum is computed after the loop, where it is fused with the updates into one pass over
        # memory, and again inside the loop. CPUs make a pass for each operation, so they compute it once, before it.
        return lax.platform_dependent(state, acc, cpu=add_before, default=add_in_each)

    form = with_derivative_of(by_cond, by_loop, step) if _same_shapes(step.like[0], acc) else by_cond
    updates, new_state, new_acc = form(should_step, state, acc, add_consts, step_consts)
    return updates, new_state, new_acc


def in_place(flag: Bool[Array, ""], f: Callable[..., Any], x: object) -> Any:
    """Return `f(x)` if `flag` is true, else `x`, in the memory of `x`.

    This is a loop that runs once or zero times: XLA updates the carry of a loop in place, and does not touch it if the
    loop runs zero times.
    """

    def cond(carry: PyTree) -> Any:
        return carry[0]

    def body(carry: PyTree) -> Any:
        return jnp.zeros_like(flag), f(carry[1])

    return lax.while_loop(cond, body, (flag, x))[1]


def update_if(
    flag: Any,
    update: Callable[..., Any],
    updates: Updates,
    state: OptState,
    otherwise: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """Return `update(state)` if `flag` is true, else `otherwise` of each of the updates and the unchanged state.

    Args:
        flag: a bool of shape ().
        update: maps a state to updates and a new state of the same structure and dtypes. It is traced once.
        updates: the updates that `update` closes over.
        state: the state.
        otherwise: maps one of `updates` to its replacement, which is cast to the dtype that `update` returns. If
            `update` returns None for a leaf, as for a frozen one, the replacement is None.
    """
    state = jtu.tree_map(strengthen, state)  # a user may have put a Python number into it, and cond needs equal types
    # Arrays that `update` closes over are passed to the branches, since jit would keep them alive in its cache.
    traced, consts = trace(update, state)
    treedef = jtu.tree_structure(updates)
    likes = treedef.flatten_up_to(traced.like[0])

    def run(state: OptState, consts: list[Any]) -> Any:
        return traced(state, consts=consts)

    def skip(state: OptState, _: list[Any]) -> Any:
        others = map(otherwise, jtu.tree_leaves(updates))
        kept = [None if like is None else cast_like(x, like) for like, x in zip(likes, others, strict=True)]
        return treedef.unflatten(kept), state

    new_updates, new_state = lax.cond(flag, run, skip, state, consts)
    return new_updates, new_state


def run_if(flag: Bool[Array, ""], f: Callable[..., Any], carry: PyTree) -> Any:
    """Return `f(carry)` if `flag` is true, else `carry`, in the memory of `carry`, and differentiable.

    Args:
        flag: a bool of shape ().
        f: maps a tree of arrays to a tree of the same structure, shapes and dtypes.
        carry: the tree.
    """
    traced, consts = trace(f, carry)

    def run(consts: list[Any], carry: PyTree) -> Any:
        return traced(carry, consts=consts)

    def wait(carry: PyTree) -> Any:
        return carry

    def by_cond(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        return lax.cond(flag, functools.partial(run, consts), wait, carry)

    def by_loop(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        return in_place(flag, functools.partial(run, consts), carry)

    return with_derivative_of(by_cond, by_loop, traced)(flag, carry, consts)


def with_derivative_of(by_cond: Callable[..., Any], by_loop: Callable[..., Any], traced: Traced) -> Callable[..., Any]:
    """Return `by_loop` with the derivative of `by_cond`, since loops have no derivative in reverse mode.

    Args:
        by_cond: a differentiable function.
        by_loop: a function with the same results.
        traced: the function that both run. If it has effects, such as the debug print of a line search, `by_cond` is
            returned, since derivative rules cannot have effects.
    """
    if traced.jaxpr.effects:
        return by_cond

    def derivative(primals: PyTree, tangents: PyTree) -> Any:
        return untyped.jvp(by_cond, primals, tangents)

    form = untyped.custom_jvp(by_loop)
    form.defjvp(derivative)
    out: Callable[..., Any] = form
    return out


def run_in_place(
    should_step: Any, step: Callable[..., Any], like: list[Any], state: OptState, acc: list[Any]
) -> tuple[Any, Any, Any]:
    """Run `step(state, acc)` if `should_step` is true, in the memory of its arguments.

    The updates use the memory of the accumulator, which is not needed then. Memory of their own would have to be filled
    with zeros in steps that only accumulate.

    Args:
        should_step: whether to run the step; a bool of shape ().
        step: maps a state and an accumulator to updates and a new state.
        like: the shape and dtype of each update; None for a leaf without an update.
        state: the state.
        acc: the arrays of the accumulator.

    Returns:
        The updates, zero if the step was not run; the state; the accumulator, zero if the step was run.
    """
    places = [x if u is None else x.astype(promoted_dtype(x, u)) for x, u in zip(acc, like, strict=True)]

    def body(carry: PyTree) -> Any:
        state, reverse = carry
        places = reverse[::-1]
        updates, new_state = step(state, [place.astype(x.dtype) for place, x in zip(places, acc, strict=True)])
        pairs = zip(places, updates, strict=True)
        return new_state, [place if u is None else u.astype(place.dtype) for place, u in pairs][::-1]

    # In reverse, since XLA assigns memory from the last result to the first: in their own order, a quarter of them
    # would need new memory if nothing is donated.
    state, reverse = in_place(should_step, body, (state, places[::-1]))
    parts = [
        _part_jitted(should_step, place, None if u is None else u.dtype, x.dtype)
        for place, u, x in zip(reverse[::-1], like, acc, strict=True)
    ]
    return [u for u, _ in parts], state, [x for _, x in parts]


def _part(
    should_step: Bool[Array, ""], place: Array, update_dtype: DTypeLike | None, acc_dtype: DTypeLike
) -> tuple[Any, Any]:
    """Return the update and the accumulator, one of which is in `place`, and the other zero."""
    update = None
    if update_dtype is not None:
        update = lax.select(should_step, place, jnp.zeros_like(place)).astype(update_dtype)
    return update, _zero(should_step, place).astype(acc_dtype)


# Traced once for each shape; inlined, since XLA copies the arguments of a call.
_part_jitted: Any = untyped.jit(_part, static_argnums=(2, 3), inline=True)


def _zero(should_step: Bool[Array, ""], x: Array) -> Any:
    """Return zeros if `should_step` is true, else `x`."""
    return lax.select(should_step, jnp.zeros_like(x), x)


_zero_jitted: Any = untyped.jit(_zero, inline=True)


def _same_shapes(like: list[Any], acc: list[Any]) -> bool:
    """Whether each update fits into its accumulator; one that is broadcast to its param may be smaller."""
    return all(u is None or u.shape == x.shape for u, x in zip(like, acc, strict=True))
