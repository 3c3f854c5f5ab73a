"""Take steps of an optimizer with made-up gradients, and measure the updates."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from treekit._base.dtype import dtype_of, has_no_update, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import has_gradient, is_parameter
from treekit._base.tree import flatten_updates, is_none
from treekit._base.types import OptState, Params, Updates
from treekit._jaxpr.evaluate import Program, trace_program
from treekit.optax._kernel.state_map import Entry
from treekit.optax._kernel.transformation import GradientTransformation

_MOST_MINI_STEPS = 1000


@dataclasses.dataclass(frozen=True)
class Start:
    """An optimizer, and where its steps start.

    Attributes:
        tx: the optimizer.
        params: the params.
        state: the state.
        entries: what the arrays of the state are.
        is_given: whether the state is from the middle of training, instead of from `tx.init`.
        other_keys: whether the PRNG keys in the state were replaced by others.
    """

    tx: GradientTransformation[Any]
    params: Params
    state: OptState
    entries: list[Entry]
    is_given: bool
    other_keys: bool = False

    @property
    def has_copies(self) -> bool:
        """Whether the state has copies of params that it was given, which do not fit other params."""
        return self.is_given and any(entry.role == "params" for entry in self.entries)

    def with_other_keys(self) -> "Start | None":
        """Return the same with other PRNG keys in the state; None if it has none."""
        if not any(map(_is_key, jtu.tree_leaves(self.state))):
            return None
        return dataclasses.replace(self, state=_with_other_keys(self.state), other_keys=True)

    def with_params(self, value: float) -> "Start":
        """Return the same for params that are `value` everywhere."""
        params = _filled(self.params, is_parameter, value)
        if self.is_given:
            return dataclasses.replace(self, params=params)
        state = self.tx.init(params)
        return dataclasses.replace(self, params=params, state=_with_other_keys(state) if self.other_keys else state)


class Taken(NamedTuple):
    """A step that was taken: the updates, the state before the last mini-step, and the state after it."""

    updates: Updates
    before: OptState
    after: OptState


class Steps:
    """Steps of an optimizer with made-up gradients.

    Args:
        start: where they start.
        curvature: that of the quadratic loss that each step gets; None for steps without a loss.
    """

    def __init__(self, start: Start, curvature: float | None = None) -> None:
        self.start, self.curvature = start, curvature
        self._taken: dict[tuple[float, float | None], tuple[Start, list[Taken]]] = {}
        self._program: Program | None = None

    def take(self, n: int, slope: float, value: float | None = None) -> Taken:
        """Return the step with number `n`: with gradients of `slope`, for these params, or for `value` everywhere."""
        if (slope, value) not in self._taken:
            self._taken[slope, value] = self.start if value is None else self.start.with_params(value), []
        start, taken = self._taken[slope, value]
        while len(taken) <= n:
            state = taken[-1].after if taken else start.state
            taken.append(self.round(gradients(start.params, slope), state, start.params))
        return taken[n]

    def round(self, grads: Updates, state: OptState, params: Params) -> Taken:
        """Take one step, or the mini-steps of one round of MultiSteps."""
        rounds = _rounds(state)
        for _ in range(_MOST_MINI_STEPS):
            before, (updates, state) = state, self._update(grads, state, params)
            if all(new > old for new, old in zip(_rounds(state), rounds, strict=True)):
                return Taken(updates, before, state)
        raise ValueError(f"MultiSteps took no step in {_MOST_MINI_STEPS:,} mini-steps")

    def program(self, grads: Updates, state: OptState, params: Params) -> Program:
        """Return the update, traced once."""
        if self._program is None:
            self._program = trace_program(self._update, grads, state, params)
        return self._program

    def _update(self, grads: Updates, state: OptState, params: Params) -> tuple[Any, Any]:
        extra = {} if self.curvature is None else _loss(params, grads, self.curvature)
        updates, new_state = self.start.tx.update(grads, state, params, **extra)
        return updates, new_state


def _is_key(x: Any) -> bool:
    """Whether an array is PRNG keys: of the new style, or one of the old, which Optax's noise has in its state."""
    dtype = dtype_of(x)
    is_old = dtype == jnp.uint32 and np.shape(x) in ((2,), (4,))
    return is_old or (dtype is not None and issubdtype(dtype, jax.dtypes.prng_key))


def _with_other_keys(state: OptState) -> Any:
    def other(x: Any) -> Any:
        if not _is_key(x):
            return x
        if dtype_of(x) == jnp.uint32:
            return x ^ 1
        return untyped.random.wrap_key_data(jax.random.key_data(x) ^ 1, impl=jax.random.key_impl(x))

    return jtu.tree_map(other, state)


def _rounds(state: OptState) -> list[int]:
    """Return the number of rounds that each MultiSteps in a state has finished."""

    def stop(x: object) -> bool:
        return isinstance(x, optax.MultiStepsState)

    return [int(x.gradient_step) for x in jtu.tree_leaves(state, is_leaf=stop) if stop(x)]


def _loss(params: Params, grads: Updates, curvature: float) -> dict[str, Any]:
    """Return the extra arguments for a quadratic loss with these gradients."""

    def value_fn(candidate: object, *args: object, **kwargs: object) -> Any:
        trees = (candidate, params, grads)
        trios = zip(*(jtu.tree_leaves(tree, is_leaf=is_none) for tree in trees), strict=True)
        terms = [_term(x - p, g, curvature) for x, p, g in trios if has_gradient(p)]
        return sum(terms, jnp.float32(curvature))

    return {"value": jnp.float32(curvature), "grad": grads, "value_fn": value_fn}


def _term(away: Any, grad: Any, curvature: float) -> Any:
    distance, slope = (jnp.ravel(x).real.astype(jnp.float32) for x in (away, grad))
    return jnp.sum(slope * distance + curvature / 2 * distance * distance)


def gradients(params: Params, slope: float) -> Any:
    """Return gradients that are `slope` everywhere, and None for what has no gradient."""
    return jtu.tree_map(_or_none, params, _filled(params, has_gradient, slope))


def _or_none(param: object, grad: object) -> Any:
    return grad if has_gradient(param) else None


def varied_gradients(params: Params) -> Any:
    """Return gradients that differ everywhere, all negative."""

    def gradient(x: Any) -> Any:
        return -jnp.linspace(1, 2, x.size).reshape(x.shape).astype(x.dtype) if has_gradient(x) else None

    return jtu.tree_map(gradient, params)


def _filled(params: Params, is_filled: Callable[[Any], bool], value: float) -> Any:
    """Replace leaves by arrays that are `value` everywhere. Leaves that are alike share one."""
    made: dict[Any, Any] = {}

    def fill(x: Any) -> Any:
        if not is_filled(x):
            return x
        key = np.shape(x), dtype_of(x), getattr(x, "sharding", None)
        if key not in made:
            made[key] = jnp.full_like(x, value)
        return made[key]

    return jtu.tree_map(fill, params)


def sizes(params: Params, updates: Updates, rest: Updates = None) -> list[float | None]:
    """Return the root mean square of each update, less `rest`; negative if it goes along a gradient of ones.

    It is None if it is not finite.

    Without a gradient, some optimizers divide 0 by 0, so NaN in `rest` counts as 0.
    """
    treedef = jtu.tree_structure(params)
    pairs = zip(*(flatten_updates(treedef, tree) for tree in (updates, rest)), strict=True)
    measured: list[Any] = [0.0 if has_no_update(a) else _size(a, None if has_no_update(b) else b) for a, b in pairs]
    return [float(x) if np.isfinite(x) else None for x in jax.device_get(measured)]  # one transfer for all


def _measure_size(update: Any, rest: Any) -> Any:
    wide = update.astype(jnp.complex64 if jnp.iscomplexobj(update) else jnp.float32)
    if rest is not None:
        wide -= jnp.nan_to_num(rest.astype(wide.dtype), nan=0, posinf=0, neginf=0)
    size = jnp.sqrt(jnp.sum(jnp.abs(wide) ** 2) / max(wide.size, 1))
    return jnp.where(jnp.sum(wide.real) > 0, -size, size)


_size: Callable[[Any, Any], Any] = untyped.jit(_measure_size)
