"""`dtype_preserving`: preserve dtypes in any transformation, and choose the dtype and rounding of its state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import optax
from jax.typing import DTypeLike

from treekit._base.jax import jnp
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._round import hash_bits, widen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve_dtypes import like_updates, preserve_dtypes
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of, described
from treekit.optax._kernel.types import S
from treekit.optax._wrappers.nesting import refuse_nested
from treekit.optax._wrappers.rounding_state import (
    EightBitState,
    StochasticRoundingState,
    check_kind,
    inner_numbers,
    with_inner,
)
from treekit.optax._wrappers.signs import check_signs
from treekit.optax._wrappers.state_dtype import cast_state, check_state, check_state_dtype, has_codes, store

# One dtype for all floating-point state, or one for each accumulator, by name or by pattern. To mypy, a dict with names
# and patterns has keys of type object.
if TYPE_CHECKING:
    StateDtype = DTypeLike | Mapping[Any, DTypeLike] | None
else:
    StateDtype = Any  # so that our own error, which names the entry, precedes that of a run-time checker


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
    """Preserve dtypes, weak types and structure of a transformation's state, whatever the dtypes of the gradients.

    `init` makes weak types strong. `update` returns every leaf of the state in the dtype that it had before, and every
    update in the wider of its gradient's and its param's dtype. So scan and cond accept the state, and jit traces once.

    In bf16, `0.999 * v` rounds to `v`: a second moment that was large once never decays. There are two solutions.
    `state_dtype=jnp.float32` stores the state in f32. `rounding="stochastic"` stores it in 16 or 8 bits, computes in
    f32, and rounds at random, without bias.

    In 8 bits, moments are stored as codes: `state_dtype={"mu": jnp.int8, "nu": jnp.uint8}`. A code consists of the
    upper bits of the f32, so there is no scale. `treekit.optax.decode_state` returns the numbers. int8 is for moments
    with a sign, from 4.7e-9 to 14; uint8 for those that are never negative, from 1.7e-17 to 192. Larger numbers are
    stored as the largest. Inf, NaN, and negative numbers in uint8 become NaN. Arrays of fewer than 4,096 elements are
    stored in f32.

    Args:
        inner: any transformation.
        state_dtype: a floating-point dtype in which all floating-point state is stored, whatever the dtypes of the
            params. Numbers of shape () are not narrowed, since some are hyperparameters; averages of params and
            accumulators of gradients are stored in f32 at least. By default, state has the dtypes that `inner.init`
            gives it. Or a dtype for each accumulator, `{"mu": jnp.bfloat16, "nu": jnp.float32}`: other state keeps its
            dtype. A key is a name or a pattern. A pattern is a glob as in `treekit.path_mask` that matches the whole
            key path in the state, such as "**.mu.embed.**", or a compiled pattern that is found in it. A name is one
            part of that path, above the params. A path is written as "0.mu.layers.0.weight". The first pattern that
            matches decides; without one, the outermost name.
        rounding: how state and updates of less than 32 bits are rounded. "nearest": `inner` computes in the dtypes
            that it receives; if there is a `state_dtype`, in f32 and in that dtype at least. "stochastic": it computes
            in f32 at least, and the results are rounded at random.
        seed: determines the random bits, together with the numbers of the update and of the leaf. So a run can be
            repeated, stopped and resumed, on any number of devices. Use another seed for each such transformation.

    Returns:
        A transformation; its state has the structure of that of `inner`. With rounding="stochastic" it is a
        NamedTuple of a count (`rounding_count`) and that state (`inner_state`): an `EightBitState` if `state_dtype`
        has int8 or uint8, else a `StochasticRoundingState`.

    Raises:
        TypeError: `state_dtype` is not a floating-point dtype of 16 bits or more, or, by name, int8 or uint8; `seed` is
            not an int; or `inner` contains another `dtype_preserving` with a `state_dtype` for the same state. Or,
            raised by `update`, `inner` changes the structure of the state or of the updates (the message lists the
            differences), or the state was made with another `state_dtype`.
        ValueError: `rounding` has another value, or is "nearest" with int8 or uint8; in some trial steps, an
            accumulator becomes negative that is to be stored in uint8. Or, raised by `init`, a name in `state_dtype`
            does not occur in the state (the message lists the names that do), or names an average or an accumulator of
            gradients that it would narrow.

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
    check_state_dtype(state_dtype, rounding)
    _check_seed(seed)
    core = preserve_dtypes(inner) if rounding == "stochastic" else core_of(inner)
    core = refuse_nested(core, state_dtype, rounding)
    check_signs(core, state_dtype)
    if rounding == "stochastic":
        return at_boundary(_round_state(core, state_dtype, seed))
    return at_boundary(core if state_dtype is None else store(core, state_dtype))


def _check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, found {seed!r}")


def _round_state(inner: Core, state_dtype: StateDtype, seed: int) -> Core:
    """Let `inner` compute in f32, and round narrow state and updates stochastically."""
    inner_init, inner_update = inner
    kind = EightBitState if has_codes(state_dtype) else StochasticRoundingState

    def init(params: Params) -> StochasticRoundingState:
        state = inner_init(params)
        held = state if is_params_placeholder(params) else cast_state(state_dtype, state, params)
        return kind(jnp.zeros([], jnp.uint32), held)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        check_kind(state, kind)
        check_state(state.inner_state, state_dtype, updates if params is None else params)
        new_updates, new = inner_update(widen(updates), inner_numbers(state), widen(params), **extra)
        random_bits = hash_bits(seed % 2**32, seed >> 32 & 0xFFFFFFFF, state.rounding_count)
        return with_inner(state, new_updates, like_updates(updates, params), new, random_bits)

    return optax.GradientTransformationExtraArgs(init, update)
