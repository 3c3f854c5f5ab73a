"""Does a step run, or not? In the memory of what it changes, differentiable, and traced once."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from jaxtyping import Array, Bool

from treekit._base.dtype import promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped, varying_axes, varying_over
from treekit._base.predicates import is_traced
from treekit._base.types import OptState, PyTree


def run_if(flag: Bool[Array, ""], f: Callable[..., Any], carry: PyTree) -> Any:
    """Return `f(carry)` if `flag` is true, else `carry`, in the memory of `carry`, and differentiable.

    This is a loop that runs once or zero times: XLA updates the carry of a loop in place, and does not touch it if the
    loop runs zero times. That is so with JAX 0.10.2, on CPUs (tests/optax/whole/test_cost.py), on TPU v5e and on H100
    (tests/accelerators/test_multi_steps.py, benchmarks/results/accelerators.md).

    Args:
        flag: a bool of shape ().
        f: maps a tree of arrays to a tree of the same structure, shapes and dtypes.
        carry: the tree.
    """
    if is_known(flag):
        return f(carry) if flag else carry
    traced, consts = trace(f, carry)
    # In a shard_map, the carry has to vary between all devices between which the result does. That may make the result
    # vary between more of them, so it is repeated until nothing changes.
    while (varying := _varying_as(carry, flag, traced.like)) is not carry:
        carry = varying
        traced, consts = trace(f, carry)

    def by_cond(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        def run(carry: PyTree) -> Any:
            return traced(carry, consts=consts)

        def wait(carry: PyTree) -> Any:
            return carry

        return lax.cond(flag, run, wait, carry)

    if traced.jaxpr.effects:  # such as the debug print of a line search; derivative rules cannot have any
        return by_cond(flag, carry, consts)

    # Arrays that `f` closes over are arguments: JAX cannot differentiate closures of a custom_jvp function.
    def by_loop(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        def is_due(state: PyTree) -> Any:
            return state[0]

        def body(state: PyTree) -> Any:
            done = varying_over(jnp.zeros_like(flag), varying_axes(flag))
            return done, traced(state[1], consts=consts)

        return lax.while_loop(is_due, body, (flag, carry))[1]

    def derivative(primals: PyTree, tangents: PyTree) -> Any:  # a loop has no derivative in reverse mode
        return untyped.jvp(by_cond, primals, tangents)

    form = untyped.custom_jvp(by_loop)
    form.defjvp(derivative)
    return form(flag, carry, consts)


def computed_once(flag: Bool[Array, ""], f: Callable[..., Any], carry: PyTree) -> Any:
    """Return `f(carry)`. The caller knows that the flag is true, and XLA does not.

    XLA computes a sum that has several readers, such as a clip by norm, again for each of them. It computes what a loop
    returns once, and in place (JAX 0.10.2, tests/accelerators/test_multi_steps.py).
    """
    return run_if(flag, f, carry)


def _varying_as(carry: PyTree, flag: Bool[Array, ""], like: PyTree) -> Any:
    """Return a carry that differs between the devices of a `shard_map` where its result does; itself if it does."""
    leaves, treedef = jtu.tree_flatten(carry)
    axes = [varying_axes(flag) | varying_axes(x) for x in jtu.tree_leaves(like)]
    if all(new <= varying_axes(x) for x, new in zip(leaves, axes, strict=True)):
        return carry
    return treedef.unflatten(map(varying_over, leaves, axes))


def run_step_if(
    should_step: Any,
    accumulate: Callable[..., Any],
    inner_step: Callable[..., Any],
    state: OptState,
    acc: list[Any],
) -> tuple[Any, Any, Any]:
    """Run `inner_step` if `should_step` is true, else only accumulate.

    The updates take the place of the accumulator, which is not needed after the step. If they had memory of their own,
    each step that only accumulates would have to fill it with zeros.

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

    # | | if it ran | if not |
    # |---|---|---|
    # | `state` | the new one | the old one |
    # | `places`, after the loop | the updates, where the accumulator was | the accumulator before this step |
    # | `sums` | not used | the accumulator after this step |
    # | returned | the updates; zeros for the accumulator | zeros for the updates; the accumulator |
    #
    # If the devices of a shard_map disagree about `should_step`, so they do about the state and the accumulator.
    leaves, treedef = jtu.tree_flatten((state, acc))
    state, acc = treedef.unflatten([varying_over(x, varying_axes(should_step)) for x in leaves])
    step, consts = trace(inner_step, state, acc)
    likes = step.like[0]
    # Each in a dtype that holds its update too; most have such a dtype already.
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


def is_known(flag: object) -> bool:
    """Whether the value of a flag is known, as it is outside of jit; one that is not a scalar is for JAX to reject."""
    return not is_traced(flag) and jnp.shape(flag) == ()


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


def _zero(flag: Bool[Array, ""], x: Array) -> Any:
    return lax.select(flag, jnp.zeros_like(x), x)


# Zeros if a flag is true, else the array. Traced once for each shape; inlined, since XLA copies the arguments of a call
# on CPUs (JAX 0.10.2, tests/optax/whole/test_cost.py).
zero_if: Any = untyped.jit(_zero, inline=True)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function, which can be called again without running its Python code.

    It does not contain the arrays that the function closes over, since JAX caches it: they are passed in each call.

    Attributes:
        jaxpr: the traced computation.
        like: the result, with a shape and a dtype for each array.
    """

    jaxpr: Any
    like: Any

    def __call__(self, *args: Any, consts: Any) -> Any:
        """Compute the result for other arguments, and other arrays instead of those closed over."""
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, consts)
        leaves = untyped.extend.core.jaxpr_as_fun(closed)(*jtu.tree_leaves(args))
        return jtu.tree_structure(self.like).unflatten(leaves)


def trace(f: Callable[..., Any], *args: object) -> tuple[Traced, Any]:
    """Trace a function, and return it with the arrays that it closes over.

    Under jit, the function is jitted first, so that each call adds only one equation; adding thousands of equations
    again would take as long as tracing them. Compilers inline the call. Outside of jit, JAX would keep the arrays alive
    that a jitted function closes over.
    """
    under_jit = any(map(is_traced, jtu.tree_leaves(args)))
    closed, like = untyped.make_jaxpr(untyped.jit(f) if under_jit else f, return_shape=True)(*args)
    # As of JAX 0.12, a jaxpr contains its constants: it is made again, without them.
    jaxpr = jax.extend.core.ClosedJaxpr(closed, []) if closed.jaxpr is closed else closed.jaxpr
    return Traced(jaxpr, like), closed.consts
