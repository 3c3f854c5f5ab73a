"""Loops that run once or zero times, in the memory of what they change; what they run, traced; their derivative."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from jaxtyping import Array, Bool

from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_traced
from treekit._base.types import PyTree


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


def in_own_memory(arrays: list[Any]) -> list[Any]:
    """Return arrays for a loop to change in place, which are arguments of the program, in memory of its own on CPUs.

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
    # As of JAX 0.12, a jaxpr contains its constants, and is made again without.
    jaxpr = jax.extend.core.ClosedJaxpr(closed, []) if closed.jaxpr is closed else closed.jaxpr
    return Traced(jaxpr, like), closed.consts
