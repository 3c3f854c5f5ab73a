"""Loops that run once or zero times, in the memory of what they change; what they run, traced; their derivative."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from treekit._base.dtype import promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
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
            return jnp.zeros_like(flag), traced(state[1], consts=consts)

        return lax.while_loop(is_due, body, (flag, carry))[1]

    def derivative(primals: PyTree, tangents: PyTree) -> Any:  # a loop has no derivative in reverse mode
        return untyped.jvp(by_cond, primals, tangents)

    form = untyped.custom_jvp(by_loop)
    form.defjvp(derivative)
    return form(flag, carry, consts)


def is_known(flag: object) -> bool:
    """Whether the value of a flag is known, as it is outside of jit; one that is not a scalar is for JAX to reject."""
    return not is_traced(flag) and jnp.shape(flag) == ()


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
    places = [
        x if u is None or u.dtype == x.dtype else x.astype(promoted_dtype(x, u)) for x, u in zip(acc, like, strict=True)
    ]

    def body(carry: PyTree) -> Any:
        state, reverse = carry
        places = reverse[::-1]
        updates, new_state = step(state, [place.astype(x.dtype) for place, x in zip(places, acc, strict=True)])
        pairs = zip(places, updates, strict=True)
        return new_state, [place if u is None else u.astype(place.dtype) for place, u in pairs][::-1]

    # In reverse, since XLA assigns memory from the last result to the first: in their own order, some of them would
    # need new memory on CPUs if nothing is donated, as of JAX 0.10.2: tests/optax/whole/test_cost.py.
    state, reverse = run_if(should_step, body, (state, places[::-1]))
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


# Traced once for each shape; inlined, since XLA copies the arguments of a call on CPUs, as of JAX 0.10.2:
# tests/optax/whole/test_cost.py.
_part_jitted: Any = untyped.jit(_part, static_argnums=(2, 3), inline=True)


def _zero(should_step: Bool[Array, ""], x: Array) -> Any:
    """Return zeros if `should_step` is true, else `x`."""
    return lax.select(should_step, jnp.zeros_like(x), x)


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
    # As of JAX 0.12, a jaxpr contains its constants, and is made again without.
    jaxpr = jax.extend.core.ClosedJaxpr(closed, []) if closed.jaxpr is closed else closed.jaxpr
    return Traced(jaxpr, like), closed.consts
