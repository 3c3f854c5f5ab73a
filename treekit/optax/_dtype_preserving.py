"""dtype_preserving: the second kernel, for users' own transformations."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import optax
from jax.typing import DTypeLike

from treekit._jax import jnp
from treekit._round import hash_bits, round_like, widen
from treekit.optax._boundary import at_boundary
from treekit.optax._dtypes import like_updates, preserve_dtypes
from treekit.optax._selection import is_params_placeholder
from treekit.optax._state_dtype import cast_state, check_state, check_state_dtype, is_by_name, store_by_name
from treekit.optax._transformation import GradientTransformation, core_of, described
from treekit.optax._types import S, TransformationLike

# One for all floating state, or one for each accumulator, by name or by pattern.
if TYPE_CHECKING:
    StateDtype = DTypeLike | Mapping[str, DTypeLike] | Mapping[re.Pattern[str], DTypeLike] | None
else:
    StateDtype = Any  # so that our own error, which names the entry, comes before that of a run-time checker


class StochasticRoundingState(NamedTuple):
    """State that is rounded stochastically.

    Attributes:
        rounding_count: the number of updates so far, from which the random bits come; uint32, shape ().
        inner_state: the state of the inner transformation.
    """

    rounding_count: Any  # no `count`, so that optax.tree.get finds one count in the state of adam
    inner_state: Any


@overload
def dtype_preserving(
    inner: TransformationLike, *, state_dtype: StateDtype = None, rounding: Literal["stochastic"], seed: int = 0
) -> GradientTransformation[StochasticRoundingState]: ...
@overload
def dtype_preserving(
    inner: GradientTransformation[S] | TransformationLike,
    *,
    state_dtype: StateDtype = None,
    rounding: Literal["nearest"] = "nearest",
    seed: int = 0,
) -> GradientTransformation[S]: ...
@overload
def dtype_preserving(
    inner: TransformationLike,
    *,
    state_dtype: StateDtype = None,
    rounding: Literal["nearest", "stochastic"],
    seed: int = 0,
) -> GradientTransformation[Any]: ...
@described
def dtype_preserving(
    inner: TransformationLike,
    *,
    state_dtype: StateDtype = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int = 0,
) -> GradientTransformation[Any]:
    """Keep the dtype, weak type and structure of a transformation's state, whatever the dtypes of the gradients.

    `init` makes weak types strong. `update` gives every leaf of the state the dtype it came in with, and every update
    the wider of its gradient's and its param's dtype; so scan and cond accept the state, and jit traces once.

    In bf16 `0.999 * v` rounds to `v`: a second moment that has once been large never decays. There are two cures.
    `state_dtype=jnp.float32` holds the state in f32. `rounding="stochastic"` holds it in 16 bits or 8, computes in f32,
    and casts back by `treekit.stochastic_round`, which is right on average.

    Args:
        inner: any transformation.
        state_dtype: a floating dtype in which all floating state is stored, whatever that of the params is; but numbers
            of shape () are not narrowed, since among them are hyperparameters. By default state has the dtypes that
            `inner.init` gives it. Or a dtype for each accumulator, `{"mu": jnp.bfloat16, "nu": jnp.float32}`: the rest
            keeps its dtype, and `inner` computes in f32 at least. A name is a part of a key path in the state; if a
            path has several, the outermost decides. If it has none, so does a compiled pattern, which is searched for
            in the whole path, such as "0.mu.layers.0.weight".
        rounding: how state and updates of less than 32 bits are rounded. "nearest": `inner` computes in `state_dtype`
            or in the dtypes it is given. "stochastic": it computes in f32 at least, and what comes out is rounded at
            random.
        seed: what the random bits are made of, with the number of the update and of the leaf: a run can be repeated,
            stopped and resumed, on any number of devices. Give each of several such transformations its own.

    Returns:
        A transformation; its state has the structure of that of `inner`. With rounding="stochastic" it is a
        NamedTuple of a count (`rounding_count`) and that state (`inner_state`).

    Raises:
        TypeError: `state_dtype` is no floating dtype, `seed` no int; or, from `update`, `inner` changes the structure
            of the state or of the updates, with the difference.
        ValueError: `rounding` has another name; or, from `init`, a name in `state_dtype` decides about nothing in
            the state, with the names that there are.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = dtype_preserving(optax.radam(1e-3))
    >>> params = jnp.ones(2, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> _, new_state = tx.update(jnp.ones(2, jnp.float32), state, params)
    >>> state[0].nu.dtype, new_state[0].nu.dtype
    (dtype(bfloat16), dtype(bfloat16))
    """
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding must be 'nearest' or 'stochastic', found {rounding!r}")
    check_state_dtype(state_dtype)
    _check_seed(seed)
    if rounding == "stochastic":
        return at_boundary(_round_state(inner, state_dtype, seed))
    if is_by_name(state_dtype):
        return at_boundary(store_by_name(inner, state_dtype))
    return at_boundary(core_of(inner) if state_dtype is None else preserve_dtypes(inner, state_dtype=state_dtype))


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, found {seed!r}")


def _round_state(
    inner: TransformationLike, state_dtype: StateDtype, seed: int
) -> optax.GradientTransformationExtraArgs:
    """`inner` computes in f32, all of it; what is narrow of its state and its updates is then rounded down."""
    tx = preserve_dtypes(inner)

    def init(params: Any) -> StochasticRoundingState:
        state = tx.init(params)
        held = state if is_params_placeholder(params) else cast_state(state_dtype, state)
        return StochasticRoundingState(jnp.zeros([], jnp.uint32), held)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, StochasticRoundingState):
            raise TypeError(
                f"rounding='stochastic' needs the StochasticRoundingState that its init makes, found a "
                f"{type(state).__name__}. One that was made without it goes into init(params)._replace(inner_state=...)"
            )
        count, old = state
        check_state(old, state_dtype)
        new = tx.update(widen(updates), widen(old), widen(params), **extra)
        random_bits = hash_bits(seed % 2**32, seed >> 32 & 0xFFFFFFFF, count)
        new_updates, new_state = round_like(new, (like_updates(updates, params), old), random_bits)
        return new_updates, StochasticRoundingState(count + 1, new_state)

    return optax.GradientTransformationExtraArgs(init, update)
