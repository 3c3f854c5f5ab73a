"""Run a transformation or hold it: `apply_if_finite`, `conditionally_transform`, `conditionally_mask`."""

from collections.abc import Callable
from typing import Any

import optax

from treekit._base.dtype import cast_like, promoted_dtype, strengthen, strengthen_all
from treekit._base.jax import jnp, jtu, lax, untyped, varying_axes
from treekit._base.predicates import is_narrow, is_traced
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._text.describe import describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve import preserving
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._wrappers.numbers import check_numbers_of
from treekit.optax._wrappers.rounds import MULTI_STEPS_STATES
from treekit.optax._wrappers.run_if import is_known, run_if
from treekit.optax._wrappers.select import zero_update
from treekit.optax._wrappers.state_values import states_in
from treekit.optax._wrappers.traced import Traced, trace


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
        ValueError: `max_consecutive_errors` is negative.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = apply_if_finite(optax.sgd(1.0), max_consecutive_errors=3)
    >>> updates, state = tx.update(jnp.array([1.0, jnp.nan]), tx.init(jnp.ones(2)))
    >>> updates, state.notfinite_count
    (Array([0., 0.], dtype=float32), Array(1, dtype=int32))
    """
    check_numbers_of(apply_if_finite, inner, max_consecutive_errors)
    if not is_traced(max_consecutive_errors) and max_consecutive_errors < 0:
        raise ValueError(f"max_consecutive_errors must be at least 0, found {max_consecutive_errors}")
    inner_init, update_if = core_of(inner).init, _conditional(preserving(core_of(inner)), zero_update)

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

    return at_boundary(Core(init, update))


def conditionally_transform(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool = False
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
    core = _as_wide_as_gradients(preserving(core_of(inner)))
    return _run_conditionally(core, should_transform_fn, forward_extra_args, optax.ConditionallyTransformState, _same)


def conditionally_mask(
    inner: TransformationLike, should_transform_fn: Callable[..., Any], forward_extra_args: bool = False
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
    core, state_class = preserving(core_of(inner)), optax.ConditionallyMaskState
    return _run_conditionally(core, should_transform_fn, forward_extra_args, state_class, zero_update)


def _run_conditionally(
    core: Core,
    should_transform_fn: Any,
    forward_extra_args: bool,
    state_class: Callable[..., Any],
    otherwise: Callable[[Any, Any], Any],
) -> GradientTransformation[Any]:
    if not callable(should_transform_fn):
        raise TypeError(
            "should_transform_fn must be a function of the number of the step, such as lambda step: step >= 100, found "
            f"{describe_value(should_transform_fn)}"
        )
    inner_init, update_if = core.init, _conditional(core, otherwise)

    def init(params: Params) -> Any:
        return state_class(inner_state=inner_init(params), step=jnp.zeros([], jnp.int32))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        should_transform = should_transform_fn(strengthen(state.step), **(extra if forward_extra_args else {}))
        new_updates, inner_state = update_if(should_transform, updates, state.inner_state, params, extra)
        return new_updates, state_class(inner_state=inner_state, step=optax.safe_increment(state.step))

    return at_boundary(Core(init, update))


def _conditional(core: Core, otherwise: Callable[[Any, Any], Any]) -> Callable[..., tuple[Any, Any]]:
    """Return a function that updates with `core` if a flag is true.

    | | how it decides |
    |---|---|
    | the flag is known, as it is outside of jit | in Python |
    | the state has that of a `MultiSteps`, and all devices agree | by a loop that runs once or zero times: `_by_loop` |
    | any other | by `lax.cond`: `_by_cond` |

    Args:
        core: a core that preserves the dtypes and the structure of its state. It is traced once.
        otherwise: maps an update, and what the core returns for it, to its replacement where the flag is false, which
            is cast to the dtype that the core returns. If that returns None for a leaf, as for a frozen one, the
            replacement is None.

    Returns:
        A function of the flag (a bool of shape ()), updates, state, params and the extra arguments. It returns new
            updates and a new state, which is the old one if the flag is false.
    """
    update = core.update

    def update_if(
        flag: Any, updates: Updates, state: OptState, params: Params, extra: dict[str, Any]
    ) -> tuple[Any, Any]:
        state = strengthen_all(state)  # a user may have put a Python number into it, and cond needs equal types
        treedef = jtu.tree_structure(updates)

        def run(state: OptState) -> tuple[Any, Any]:
            return update(updates, state, params, **extra)

        def hold(state: OptState, like: Updates) -> tuple[Any, Any]:
            """Return the updates of a step that is held, in the dtypes of those of the core, and the state."""
            pairs = zip(treedef.flatten_up_to(like), jtu.tree_leaves(updates), strict=True)
            held = [None if to is None else cast_like(otherwise(x, to), to) for to, x in pairs]
            return treedef.unflatten(held), state

        if is_known(flag):
            return run(state) if flag else hold(state, untyped.eval_shape(run, state)[0])

        traced, consts = trace(run, state)
        decide = _by_loop if states_in(state, MULTI_STEPS_STATES) and not varying_axes(flag) else _by_cond
        return decide(flag, traced, consts, hold, state)

    return update_if


_Hold = Callable[[OptState, Updates], tuple[Any, Any]]  # `hold` of `update_if`


def _by_loop(flag: Any, traced: Traced, consts: list[Any], hold: _Hold, state: OptState) -> tuple[Any, Any]:
    """Run or hold a step around a `MultiSteps`.

    Around the loop of that, a branch would copy the whole state twice on GPUs, as of JAX 0.10.2; without one, a branch
    moves less: benchmarks/results/accelerators.md. But where the devices of a shard_map may decide differently, what a
    loop returns counts as different on each, and so cannot be a replicated param.
    """

    def run(carry: PyTree) -> Any:
        return traced(carry[1], consts=consts)

    new_updates, new_state = run_if(flag, run, hold(state, traced.like[0]))
    return new_updates, new_state


def _by_cond(flag: Any, traced: Traced, consts: list[Any], hold: _Hold, state: OptState) -> tuple[Any, Any]:
    # The arrays that it closes over are passed to the branches, since jit would keep them alive in its cache.
    def run(state: OptState, consts: list[Any]) -> Any:
        return traced(state, consts=consts)

    def held(state: OptState, _: list[Any]) -> Any:
        return hold(state, traced.like[0])

    new_updates, new_state = lax.cond(flag, run, held, state, consts)
    return jtu.tree_map(_as_written, new_updates), new_state


def _as_written(x: Any) -> Any:
    """Keep XLA from widening an update of a branch before the branch writes it.

    On TPUs, XLA would move into the branches what reads it: a cast of `apply_updates`, so that 32 bits are written (JAX
    0.10.2, tests/accelerators/test_wrappers.py). Each has a barrier of its own: after one around
    several arrays, all of them count as different on the devices of a `shard_map` if one does.
    """
    return lax.optimization_barrier(x) if is_narrow(x) else x


def _same(x: object, _: object) -> Any:
    return x


def _as_wide_as_gradients(core: Core) -> Core:
    """Return a core whose updates are as wide as the gradients, which are the updates of a step that is skipped."""
    inner_init, inner_update = core

    def wide(grad: Any, new: Any) -> Any:
        return None if new is None else lax.convert_element_type(new, promoted_dtype(grad, new))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        news, new_state = inner_update(updates, state, params, **extra)
        return jtu.tree_map(wide, updates, news), new_state

    return Core(inner_init, update)
