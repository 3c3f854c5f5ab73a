"""`dtype_preserving`: preserve dtypes in any transformation, and choose the dtype and rounding of its state."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import optax
from jax.typing import DTypeLike

from treekit._base.jax import jnp
from treekit._base.types import OptState, Params, Updates
from treekit._round import hash_bits, round_like, widen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.preserve_dtypes import like_updates, preserve_dtypes
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import GradientTransformation, core_of, described
from treekit.optax._kernel.types import S, TransformationLike
from treekit.optax._wrappers.state_dtype import cast_state, check_state, check_state_dtype, store_by_name, store_in

# One dtype for all floating-point state, or one for each accumulator, by name or by pattern. To mypy, a dict with names
# and patterns has keys of type object.
if TYPE_CHECKING:
    StateDtype = DTypeLike | Mapping[Any, DTypeLike] | None
else:
    StateDtype = Any  # so that our own error, which names the entry, precedes that of a run-time checker


class StochasticRoundingState(NamedTuple):
    """State that is rounded stochastically.

    Attributes:
        rounding_count: the number of updates so far, which determines the random bits; uint32, shape ().
        inner_state: the state of the inner transformation.
    """

    rounding_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
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
    """Preserve dtypes, weak types and structure of a transformation's state, whatever the dtypes of the gradients.

    `init` makes weak types strong. `update` returns every leaf of the state in the dtype that it had before, and every
    update in the wider of its gradient's and its param's dtype. So scan and cond accept the state, and jit traces once.

    In bf16, `0.999 * v` rounds to `v`: a second moment that was large once never decays. There are two solutions.
    `state_dtype=jnp.float32` stores the state in f32. `rounding="stochastic"` stores it in 16 or 8 bits, computes in
    f32, and casts back with `treekit.stochastic_round`, without bias.

    Args:
        inner: any transformation.
        state_dtype: a floating-point dtype in which all floating-point state is stored, whatever the dtypes of the
            params; but numbers of shape () are not narrowed, since some are hyperparameters. By default, state has the
            dtypes that `inner.init` gives it. Or a dtype for each accumulator, `{"mu": jnp.bfloat16, "nu":
            jnp.float32}`: other state keeps its dtype, and `inner` computes in f32 at least. A name is a part of a key
            path in the state; if a path contains several names, the outermost decides. If it contains no name, the
            first pattern decides: a glob as in `treekit.path_mask`, such as "**.mu.**", that matches the whole path, or
            a compiled pattern that is found in it. A path is written as "0.mu.layers.0.weight".
        rounding: how state and updates of less than 32 bits are rounded. "nearest": `inner` computes in `state_dtype`
            or in the dtypes that it receives. "stochastic": it computes in f32 at least, and the results are rounded
            at random.
        seed: determines the random bits, together with the numbers of the update and of the leaf. So a run can be
            repeated, stopped and resumed, on any number of devices. Use another seed for each such transformation.

    Returns:
        A transformation; its state has the structure of that of `inner`. With rounding="stochastic" it is a
        NamedTuple of a count (`rounding_count`) and that state (`inner_state`).

    Raises:
        TypeError: `state_dtype` is not a floating-point dtype, or `seed` is not an int; or, raised by `update`, `inner`
            changes the structure of the state or of the updates; the message lists the differences.
        ValueError: `rounding` has another value; or, raised by `init`, a name in `state_dtype` does not occur in the
            state; the message lists the names that do.

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
    if isinstance(state_dtype, Mapping):
        return at_boundary(store_by_name(inner, state_dtype))
    return at_boundary(core_of(inner) if state_dtype is None else store_in(inner, state_dtype))


def _check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, found {seed!r}")


def _round_state(
    inner: TransformationLike, state_dtype: StateDtype, seed: int
) -> optax.GradientTransformationExtraArgs:
    """Let `inner` compute in f32, and round narrow state and updates stochastically."""
    inner_init, inner_update = preserve_dtypes(inner)

    def init(params: Params) -> StochasticRoundingState:
        state = inner_init(params)
        held = state if is_params_placeholder(params) else cast_state(state_dtype, state)
        return StochasticRoundingState(jnp.zeros([], jnp.uint32), held)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, StochasticRoundingState):
            raise TypeError(
                f"rounding='stochastic' needs the StochasticRoundingState that its init makes, found a "
                f"{type(state).__name__}. Put one that was made without it into init(params)._replace(inner_state=...)"
            )
        count, old = state
        check_state(old, state_dtype)
        new = inner_update(widen(updates), widen(old), widen(params), **extra)
        random_bits = hash_bits(seed % 2**32, seed >> 32 & 0xFFFFFFFF, count)
        new_updates, new_state = round_like(new, (like_updates(updates, params), old), random_bits)
        return new_updates, StochasticRoundingState(count + 1, new_state)

    return optax.GradientTransformationExtraArgs(init, update)
