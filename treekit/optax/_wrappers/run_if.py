"""Run a function if a flag is true: in the memory of what it changes, differentiable, and traced once."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Bool

from treekit._base.jax import jnp, jtu, lax, untyped, varying_axes, varying_over
from treekit._base.predicates import is_traced
from treekit._base.types import PyTree
from treekit.optax._wrappers.traced import trace


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

    # Three functions, for the arrays that `f` closes over too: JAX cannot differentiate what custom_jvp closes over.
    def by_loop(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        def is_due(state: PyTree) -> Any:
            return state[0]

        def body(state: PyTree) -> Any:
            done = varying_over(jnp.zeros_like(flag), varying_axes(flag))
            return done, traced(state[1], consts=consts)

        return lax.while_loop(is_due, body, (flag, carry))[1]

    def by_cond(flag: Bool[Array, ""], carry: PyTree, consts: list[Any]) -> Any:
        def run(carry: PyTree) -> Any:
            return traced(carry, consts=consts)

        def wait(carry: PyTree) -> Any:
            return carry

        return lax.cond(flag, run, wait, carry)

    if traced.jaxpr.effects:  # such as the debug print of a line search; derivative rules cannot have any
        return by_cond(flag, carry, consts)

    def derivative(primals: PyTree, tangents: PyTree) -> Any:
        return untyped.jvp(by_cond, primals, tangents)

    form = untyped.custom_jvp(by_loop)  # a loop has no derivative in reverse mode
    form.defjvp(derivative)
    return form(flag, carry, consts)


def _varying_as(carry: PyTree, flag: Bool[Array, ""], like: PyTree) -> Any:
    """Return a carry that differs between the devices of a `shard_map` where its result does; itself if it does."""
    leaves, treedef = jtu.tree_flatten(carry)
    axes = [varying_axes(flag) | varying_axes(x) for x in jtu.tree_leaves(like)]
    if all(new <= varying_axes(x) for x, new in zip(leaves, axes, strict=True)):
        return carry
    return treedef.unflatten(map(varying_over, leaves, axes))


def is_known(flag: object) -> bool:
    """Whether the value of a flag is known, as it is outside of jit; one that is not a scalar is for JAX to reject."""
    return not is_traced(flag) and jnp.shape(flag) == ()
