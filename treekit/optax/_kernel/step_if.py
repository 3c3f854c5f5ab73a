"""Run a step only if a flag is true: traced once, and without additional memory.

Outside of jit, where the value of the flag is known, each is an `if` of Python: JAX would compile a loop or a cond in
each call, since it consists of new functions. tests/optax/kernel/test_eager.py counts what is compiled.

`run_step_if` is for updates of `MultiSteps`, `run_if` for the whole steps of `MultiSteps` and `apply_if_finite`, and
`update_if` for the updates of the other wrappers. tests/accelerators and tests/optax/test_cost.py count the memory.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
from jaxtyping import Array, Bool

from treekit._base.dtype import cast_like, strengthen_all
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_traced
from treekit._base.types import OptState, PyTree, Updates
from treekit.optax._kernel.in_place import in_place, run_in_place, zero_if


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
    if _is_known(should_step):
        acc = accumulate(acc)
        if should_step:
            return *inner_step(state, acc), zeros(acc)
        like = untyped.eval_shape(inner_step, state, acc)[0]
        return list(map(_zeros_at, like, acc)), state, acc

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
            # as a clip by norm, as of JAX 0.10.2: tests/accelerators/test_multi_steps.py.
            def add_and_step(state: OptState, acc: list[Any]) -> Any:
                return inner(state, in_place(should_step, now, acc))

            updates, state, old_acc = run_in_place(should_step, add_and_step, step.like[0], state, acc)
            return updates, state, [zero_if(should_step, x) for x in now(old_acc)]

        # On GPUs and TPUs, the sum is computed after the loop, where it is fused with the updates into one pass over
        # memory, and again inside the loop: tests/accelerators/test_multi_steps.py, with JAX 0.10.2. CPUs make a pass
        # for each operation, so they compute it once, before it: tests/optax/test_cost.py.
        return lax.platform_dependent(state, acc, cpu=add_before, default=add_in_each)

    form = with_derivative_of(by_cond, by_loop, step) if _same_shapes(step.like[0], acc) else by_cond
    updates, new_state, new_acc = form(should_step, state, acc, add_consts, step_consts)
    return updates, new_state, new_acc


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
    state = strengthen_all(state)  # a user may have put a Python number into it, and cond needs equal types
    treedef = jtu.tree_structure(updates)

    def others(like: Updates) -> Any:
        pairs = zip(treedef.flatten_up_to(like), jtu.tree_leaves(updates), strict=True)
        return treedef.unflatten([None if to is None else cast_like(otherwise(x), to) for to, x in pairs])

    if _is_known(flag):
        return update(state) if flag else (others(untyped.eval_shape(update, state)[0]), state)

    # Arrays that `update` closes over are passed to the branches, since jit would keep them alive in its cache.
    traced, consts = trace(update, state)

    def run(state: OptState, consts: list[Any]) -> Any:
        return traced(state, consts=consts)

    def skip(state: OptState, _: list[Any]) -> Any:
        return others(traced.like[0]), state

    new_updates, new_state = lax.cond(flag, run, skip, state, consts)
    return new_updates, new_state


def run_if(flag: Bool[Array, ""], f: Callable[..., Any], carry: PyTree) -> Any:
    """Return `f(carry)` if `flag` is true, else `carry`, in the memory of `carry`, and differentiable.

    Args:
        flag: a bool of shape ().
        f: maps a tree of arrays to a tree of the same structure, shapes and dtypes.
        carry: the tree.
    """
    if _is_known(flag):
        return f(carry) if flag else carry
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


def zeros(like: PyTree) -> Any:
    """Make zeros for a tree of shapes, dtypes and, on a mesh with explicit axes, shardings."""
    return jtu.tree_map(jnp.zeros_like, like)


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


def _is_known(flag: object) -> bool:
    """Whether the value of a flag is known, as it is outside of jit; one that is not a scalar is for JAX to reject."""
    return not is_traced(flag) and jnp.shape(flag) == ()


def _zeros_at(like: Any, place: Array) -> Any:
    """Return zeros of the dtype and shape of an update, which may be None, with the sharding of its accumulator."""
    if like is None or like.shape != place.shape:
        return zeros(like)
    return jnp.zeros_like(place, dtype=like.dtype)


def _same_shapes(like: list[Any], acc: list[Any]) -> bool:
    """Whether each update fits into its accumulator; one that is broadcast to its param may be smaller."""
    return all(u is None or u.shape == x.shape for u, x in zip(like, acc, strict=True))
