"""Run a step or hold it: `apply_if_finite`, `conditionally_transform`, `conditionally_mask`."""

import functools
from collections.abc import Callable
from typing import Any, Literal, overload

import optax
from jaxtyping import Array, Bool

from treekit._base.dtype import cast_like, is_weak, strengthen, strengthen_all
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_array, is_traced
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._in_place import in_place, run_in_place, trace, with_derivative_of, zero_if
from treekit.optax._boundary import at_boundary
from treekit.optax._preserve import preserve_dtypes
from treekit.optax._transformation import Core, GradientTransformation, core_of, described


@described
def apply_if_finite(
    inner: TransformationLike, max_consecutive_errors: int
) -> GradientTransformation[optax.ApplyIfFiniteState]:
    """Skip updates that are not finite: `optax.apply_if_finite` for every model and every mix of dtypes.

    If an update contains an inf or a NaN, the inner state does not change and the updates are zero. After
    `max_consecutive_errors` such updates in a row, the next one is accepted.

    The state counts such updates in a row: `optax.tree.get(state, "notfinite_count")` reads the count, and
    `optax.tree.set(state, notfinite_count=jnp.zeros([], jnp.int32))` resets it. The total is `total_notfinite`.

    Args:
        inner: any transformation.
        max_consecutive_errors: the number of updates in a row that may be skipped.

    Returns:
        A transformation; its state is an `optax.ApplyIfFiniteState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = apply_if_finite(optax.sgd(1.0), max_consecutive_errors=3)
    >>> updates, state = tx.update(jnp.array([1.0, jnp.nan]), tx.init(jnp.ones(2)))
    >>> updates, state.notfinite_count
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
    """
    inner_init, update_if = core_of(inner).init, conditional(preserve_dtypes(inner), jnp.zeros_like)

    def init(params: Params) -> optax.ApplyIfFiniteState:
        zero = jnp.zeros([], jnp.int32)
        return optax.ApplyIfFiniteState(zero, jnp.array(True), zero, inner_init(params))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        finite = jnp.array([jnp.all(jnp.isfinite(g)) for g in jtu.tree_leaves(updates)], bool).all()
        count = jnp.where(finite, 0, optax.safe_increment(state.notfinite_count))
        total = jnp.where(finite, state.total_notfinite, optax.safe_increment(state.total_notfinite))
        accept = finite | (count > max_consecutive_errors)
        new_updates, inner_state = update_if(accept, updates, state.inner_state, params, extra)
        return new_updates, optax.ApplyIfFiniteState(count, finite, total, inner_state)

    return at_boundary(optax.GradientTransformationExtraArgs(init, update))


@overload
def conditionally_transform(
    inner: TransformationLike, should_transform_fn: Callable[[Any], Any], forward_extra_args: Literal[False] = False
) -> GradientTransformation[optax.ConditionallyTransformState]: ...
@overload
def conditionally_transform(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool
) -> GradientTransformation[optax.ConditionallyTransformState]: ...
@described
def conditionally_transform(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformation[optax.ConditionallyTransformState]:
    """Run a transformation in some steps, and pass updates on unchanged in the others, for every mix of dtypes.

    Args:
        inner: any transformation.
        should_transform_fn: takes the number of the step, an int32 array of shape (), and returns whether to run
            `inner`, a bool array of shape ().
        forward_extra_args: whether to pass the extra arguments of `update` to it too.

    Returns:
        A transformation; its state is an `optax.ConditionallyTransformState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = conditionally_transform(optax.scale(2.0), lambda step: step > 0)
    >>> updates, state = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    >>> updates, tx.update(jnp.ones(2), state)[0]
    (Array([1., 1.], dtype=float32), Array([2., 2.], dtype=float32))
    """
    return _run_conditionally(inner, should_transform_fn, forward_extra_args, optax.ConditionallyTransformState, _same)


@overload
def conditionally_mask(
    inner: TransformationLike, should_transform_fn: Callable[[Any], Any], forward_extra_args: Literal[False] = False
) -> GradientTransformation[optax.ConditionallyMaskState]: ...
@overload
def conditionally_mask(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool
) -> GradientTransformation[optax.ConditionallyMaskState]: ...
@described
def conditionally_mask(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool = False,
) -> GradientTransformation[optax.ConditionallyMaskState]:
    """Run a transformation in some steps, and return zero updates in the others, for every mix of dtypes.

    Args:
        inner: any transformation.
        should_transform_fn: as in `conditionally_transform`.
        forward_extra_args: as in `conditionally_transform`.

    Returns:
        A transformation; its state is an `optax.ConditionallyMaskState`.

    Raises:
        TypeError: `inner` is not a transformation.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = conditionally_mask(optax.scale(2.0), lambda step: step > 0)
    >>> tx.update(jnp.ones(2), tx.init(jnp.ones(2)))[0]
    Array([0., 0.], dtype=float32)
    """
    return _run_conditionally(
        inner, should_transform_fn, forward_extra_args, optax.ConditionallyMaskState, jnp.zeros_like
    )


def _run_conditionally(
    inner: TransformationLike,
    should_transform_fn: Callable[..., Any],
    forward_extra_args: bool,
    state_class: Callable[..., Any],
    otherwise: Callable[[Any], Any],
) -> GradientTransformation[Any]:
    inner_init, update_if = core_of(inner).init, conditional(preserve_dtypes(inner), otherwise)

    def init(params: Params) -> Any:
        return state_class(inner_state=inner_init(params), step=jnp.zeros([], jnp.int32))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        should_transform = should_transform_fn(strengthen(state.step), **(extra if forward_extra_args else {}))
        new_updates, inner_state = update_if(should_transform, updates, state.inner_state, params, extra)
        return new_updates, state_class(inner_state=inner_state, step=optax.safe_increment(state.step))

    return at_boundary(optax.GradientTransformationExtraArgs(init, update))


def _same(x: object) -> Any:
    return x


def run_step_if(
    should_step: Any,
    accumulate: Callable[..., Any],
    inner_step: Callable[..., Any],
    state: OptState,
    acc: list[Any],
    shapes: Callable[..., Any],
) -> tuple[Any, Any, Any]:
    """Accumulate, and run `inner_step` on the accumulated values if `should_step` is true.

    Args:
        should_step: whether to run the step; a bool of shape ().
        accumulate: maps the accumulator before this step to the one after it, of the same shapes and dtypes.
        inner_step: maps a state and an accumulator to updates and a new state of the same structure and dtypes. The
            updates have an array or None for each array of the accumulator.
        state: the state.
        acc: the arrays of the accumulator before this step.
        shapes: called with `inner_step`, `state` and `acc` outside of jit, where the step is not run; returns the
            updates as shapes and dtypes.

    Returns:
        The updates, zero if the step was not run; the state; the accumulator, zero if the step was run.
    """
    if _is_known(should_step):
        acc = accumulate(acc)
        if should_step:
            return *inner_step(state, acc), zeros(acc)
        return list(map(_zeros_at, shapes(inner_step, state, acc), acc)), state, acc

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


def conditional(core: Core, otherwise: Callable[[Any], Any]) -> Callable[..., tuple[Any, Any]]:
    """Return a function that updates with `core` if a flag is true.

    Args:
        core: a core that preserves dtypes and structure. It is traced once.
        otherwise: maps an update to its replacement where the flag is false, which is cast to the dtype that the core
            returns. If that returns None for a leaf, as for a frozen one, the replacement is None.

    Returns:
        A function of the flag (a bool of shape ()), updates, state, params and the extra arguments. It returns new
            updates and a new state, which is the old one if the flag is false.
    """
    update, shapes = core.update, UpdateShapes()

    def update_if(
        flag: Any, updates: Updates, state: OptState, params: Params, extra: dict[str, Any]
    ) -> tuple[Any, Any]:
        state = strengthen_all(state)  # a user may have put a Python number into it, and cond needs equal types
        treedef = jtu.tree_structure(updates)

        def run(state: OptState) -> tuple[Any, Any]:
            return update(updates, state, params, **extra)

        def others(like: Updates) -> Any:
            pairs = zip(treedef.flatten_up_to(like), jtu.tree_leaves(updates), strict=True)
            return treedef.unflatten([None if to is None else cast_like(otherwise(x), to) for to, x in pairs])

        if _is_known(flag):
            return run(state) if flag else (others(shapes((updates, state, params), extra, run, state)), state)

        # Arrays that `run` closes over are passed to the branches, since jit would keep them alive in its cache.
        traced, consts = trace(run, state)

        def run_traced(state: OptState, consts: list[Any]) -> Any:
            return traced(state, consts=consts)

        def skip(state: OptState, _: list[Any]) -> Any:
            return others(traced.like[0]), state

        new_updates, new_state = lax.cond(flag, run_traced, skip, state, consts)
        return new_updates, new_state

    return update_if


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


class UpdateShapes:
    """The shapes and dtypes of the updates of one transformation, for steps outside of jit that do not run it.

    They are found by tracing a step, once for all steps that compute from arrays of the same structure, shapes and
    dtypes, and from the same other leaves. Of the extra arguments, flags and numbers count, and only the types of the
    others: if a `value_fn` were kept here, it would keep its batch alive.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, given: PyTree, extra: dict[str, Any], step: Callable[..., Any], *args: object) -> Any:
        """Return the updates that `step(*args)` would return, which computes from `given` and the extra arguments."""
        try:
            leaves, treedef = jtu.tree_flatten(given)
            key = treedef, tuple(map(_shape_or_value, leaves)), tuple(map(_name_and_kind, extra.items()))
            if key in self._known:
                return self._known[key]
        except Exception:  # static values of users may raise anything where they are hashed or compared
            return untyped.eval_shape(step, *args)[0]
        if len(self._known) >= _MOST_KNOWN:  # an int that counts steps, perhaps
            self._known.clear()
        self._known[key] = untyped.eval_shape(step, *args)[0]
        return self._known[key]


_MOST_KNOWN = 64


def _shape_or_value(x: object) -> Any:
    """Return what the structure of updates may depend on: of a float, such as a loss, that it is one."""
    return (x.shape, x.dtype, is_weak(x)) if is_array(x) else float if type(x) is float else (type(x), x)


def _name_and_kind(item: tuple[str, Any]) -> Any:
    """Return the name of an extra argument with its value, if it is a flag or a number, else with its type."""
    name, x = item
    return name, x if isinstance(x, (int, str)) else type(x)


def zeros(like: PyTree) -> Any:
    """Make zeros for a tree of shapes, dtypes and, on a mesh with explicit axes, shardings."""
    return jtu.tree_map(jnp.zeros_like, like)


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
