"""`store_state`: choose the dtype and the rounding of a transformation's state.

In which dtypes is state stored, how is it rounded, and what are its 8-bit codes?
"""

import math
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import jax
import numpy as np
import optax
from jax.typing import DTypeLike

from treekit._arrays.codes import Codes, is_codes
from treekit._arrays.map import dtype_preserving_tree_map
from treekit._arrays.round import bits_like, hash_bits, is_inexact_dtype, round_by, widen
from treekit._base.describe import describe_value
from treekit._base.dtype import dtype_of, issubdtype, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.key_path import path_name
from treekit._base.patterns import is_match
from treekit._base.predicates import can_be_trained, is_narrow
from treekit._base.tree import is_mapping
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.misfit import StateError
from treekit.optax._kernel.preserve import like_updates, preserving
from treekit.optax._kernel.state_map import AT_LEAST_FLOAT32, map_state
from treekit.optax._kernel.transformation import Core, GradientTransformation, S, core_of
from treekit.training._eight_bits import decode_state, encode, is_code_dtype

# One dtype for all floating-point state, or one for each accumulator, by name or by pattern. To mypy, a dict with names
# and patterns has keys of type object.
if TYPE_CHECKING:
    StateDtype = DTypeLike | Mapping[Any, DTypeLike] | None
else:
    StateDtype = Any  # so that our own error, which names the entry, precedes that of a run-time checker

_SMALLEST = 4096  # an array of fewer elements is not stored in codes: it has little to save, and often a large effect
_FLOAT32 = untyped.ShapeDtypeStruct((), jnp.float32)
_OUTER: ContextVar[str] = ContextVar("outer", default="")  # the one whose init is running


class StochasticRoundingState(NamedTuple):
    """State that is rounded stochastically.

    Attributes:
        rounding_count: the number of updates so far, which determines the random bits; uint32, shape ().
        inner_state: the state of the inner transformation, in which each array of 8-bit codes is a `Codes`.
    """

    rounding_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
    inner_state: Any


@overload
def store_state(
    inner: TransformationLike, dtype: StateDtype = None, *, rounding: Literal["stochastic"], seed: int = 0
) -> GradientTransformation[StochasticRoundingState]: ...
@overload
def store_state(
    inner: GradientTransformation[S] | TransformationLike,
    dtype: StateDtype = None,
    *,
    rounding: Literal["nearest"] = "nearest",
    seed: int = 0,
) -> GradientTransformation[S]: ...
@overload
def store_state(
    inner: TransformationLike,
    dtype: StateDtype = None,
    *,
    rounding: Literal["nearest", "stochastic"],
    seed: int = 0,
) -> GradientTransformation[Any]: ...
def store_state(
    inner: TransformationLike,
    dtype: StateDtype = None,
    *,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int = 0,
) -> GradientTransformation[Any]:
    """Choose the dtype in which the state of a transformation is stored, and how it is rounded.

    `init` makes weak types strong. `update` returns every leaf of the state in the dtype that it had before, and every
    update in the wider of its gradient's and its param's dtype. So scan and cond accept the state, and jit traces once.

    In bf16, `0.999 * v` rounds to `v`: a second moment that was large once never decays. There are two solutions.
    `dtype=jnp.float32` stores the state in f32. `rounding="stochastic"` stores it in 16 or 8 bits, computes in
    f32, and rounds at random, without bias.

    In 8 bits, moments are stored as codes: `dtype={"mu": jnp.int8, "nu": jnp.uint8}`. A code consists of the
    upper bits of the f32, so there is no scale. In the state, each array of codes is a node, `Codes`, with one leaf;
    `training.decode_state` returns the numbers. int8 is for moments with a sign, from 4.7e-9 to 14; uint8 for
    those that are never negative, from 1.7e-17 to 192. You say the sign: docs/eight_bits.md has those of Optax's
    optimizers. Larger numbers are stored as the largest. Inf, NaN, and negative numbers in uint8 become NaN. Arrays of
    fewer than 4,096 elements are stored in f32.

    Args:
        inner: any transformation.
        dtype: a floating-point dtype in which all floating-point state is stored, whatever the dtypes of the
            params. Numbers of shape () are not narrowed, since some are hyperparameters; averages of params and
            accumulators of gradients are stored in f32 at least, and complex arrays keep their dtype. By default, state
            has the dtypes that `inner.init` gives it. Or a dtype for each accumulator, `{"mu": jnp.bfloat16, "nu":
            jnp.float32}`: other state keeps its dtype. A key is the name of a field of the state, or a pattern as in
            `treekit.path_mask`: a glob such as "**.mu.embed.**", or a compiled regular expression, that matches the
            whole key path in the state, "0.mu.embed.table". The first pattern that matches decides; without one, the
            field.
        rounding: how state and updates of less than 32 bits are rounded. "nearest": `inner` computes in the dtypes
            that it receives; if there is a `dtype`, in f32 and in that dtype at least. "stochastic": it computes
            in f32 at least, and the results are rounded at random.
        seed: determines the random bits, together with the numbers of the update and of the leaf. So a run can be
            repeated, stopped and resumed, on any number of devices. Use another seed for each such transformation.

    Returns:
        A transformation; its state has the structure of that of `inner`. With rounding="stochastic" it is a
        `StochasticRoundingState`, a NamedTuple of a count (`rounding_count`) and that state (`inner_state`).

    Raises:
        TypeError: `dtype` is not a floating-point dtype of 16 bits or more, or, by name, int8 or uint8; `seed` is
            not an int. Or, raised by `init`, `inner` contains another `store_state` with a `dtype` or with
            stochastic rounding. Or, raised by `update`, `inner` changes the structure of the state or of the updates
            (the message lists the differences), or the state was made with another `dtype`.
        ValueError: `rounding` has another value, or is "nearest" with int8 or uint8. Or, raised by `init`, an entry of
            `dtype` matches nothing in the state (the message lists its fields), or nothing that can be stored in
            that dtype: an average of the params or an accumulator of gradients in less than f32, or complex arrays.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = store_state(optax.radam(1e-3))
    >>> params = jnp.ones(2, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> _, new_state = tx.update(jnp.ones(2, jnp.float32), state, params)
    >>> state[0].nu.dtype, new_state[0].nu.dtype
    (dtype(bfloat16), dtype(bfloat16))
    """
    _check_arguments(dtype, rounding, seed)
    core = core_of(inner)
    if dtype is None and rounding == "nearest":
        return at_boundary(core)
    own = f"store_state(dtype={describe_value(dtype)}, rounding={rounding!r})"
    if rounding == "nearest":
        return at_boundary(_store(core, dtype, own))
    return at_boundary(_round(core, {} if dtype is None else dtype, seed, own))


def _check_arguments(state_dtype: StateDtype, rounding: object, seed: object) -> None:
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding must be 'nearest' or 'stochastic', found {rounding!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, found {seed!r}")
    if state_dtype is None:
        return
    by_name = is_mapping(state_dtype)
    for key, dtype in (state_dtype if is_mapping(state_dtype) else {"": state_dtype}).items():
        if not isinstance(key, (str, re.Pattern)):
            raise TypeError(f"dtype must map fields or patterns to dtypes, found the key {describe_value(key)}")
        what = f"dtype[{key!r}]" if by_name else "dtype"
        if by_name and is_code_dtype(dtype):
            if rounding != "stochastic":
                raise ValueError(
                    f"{what} is {jnp.dtype(dtype)}, which needs rounding='stochastic': rounded to nearest, a moment in "
                    "8 bits does not follow the gradients"
                )
        elif not is_inexact_dtype(dtype, jnp.floating) or jnp.finfo(dtype).bits < 16:
            raise TypeError(
                f"{what} must be a floating dtype of 16 bits or more, such as jnp.bfloat16, found {dtype!r}. For 8 "
                "bits, name the moments: dtype={'mu': jnp.int8, 'nu': jnp.uint8}, rounding='stochastic'"
            )


# ------------------------------------------------------------------------------------------------------ init and update


def _store(inner: Core, state_dtype: StateDtype, own: str) -> Core:
    """Return a core that stores the state of `inner` in `state_dtype`, and computes in f32 at least."""
    inner_init, inner_update = inner

    def wide(tree: PyTree) -> Any:
        def widened(x: Any) -> Any:
            wanted = untyped.ShapeDtypeStruct((), jnp.dtype(state_dtype))
            is_float = can_be_trained(x) and not jnp.iscomplexobj(x)
            return lax.convert_element_type(x, promoted_dtype(x, wanted)) if is_float else x

        return tree if is_mapping(state_dtype) else jtu.tree_map(widened, tree)

    def init(params: Params) -> Any:
        return _stored(_init_inside(inner_init, wide(params), own), state_dtype, params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        _check_state(state, state_dtype, updates if params is None else params)
        out: tuple[Any, Any] = inner_update(wide(widen(updates)), widen(state), wide(widen(params)), **extra)
        return out  # the boundary casts them to the dtypes that are preserved

    return optax.GradientTransformationExtraArgs(init, update)


def _round(inner: Core, state_dtype: StateDtype, seed: int, own: str) -> Core:
    """Return a core that computes in f32, and rounds narrow state and updates stochastically."""
    inner_init, inner_update = preserving(inner)

    def init(params: Params) -> StochasticRoundingState:
        state = _stored(_init_inside(inner_init, params, own), state_dtype, params)
        return StochasticRoundingState(jnp.zeros([], jnp.uint32), state)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, StochasticRoundingState):
            raise StateError(
                "rounding='stochastic' needs the StochasticRoundingState that its init makes, found a "
                f"{type(state).__name__}. Put one that was made without it into init(params)._replace(inner_state=...)"
                ", and convert it with training.encode_state if dtype has codes"
            )
        _check_state(state.inner_state, state_dtype, updates if params is None else params)
        wide = widen(updates), widen(decode_state(state.inner_state)), widen(params)
        new_updates, new_state = inner_update(*wide, **extra)
        random_bits = hash_bits(seed % 2**32, seed >> 32 & 0xFFFFFFFF, state.rounding_count)
        like = like_updates(updates, params), state.inner_state
        own_bits = bits_like(like, random_bits, is_leaf=is_codes)  # others for each array
        rounded: Any = dtype_preserving_tree_map(_rounded, like, (new_updates, new_state), own_bits, is_leaf=is_codes)
        return rounded[0], StochasticRoundingState(state.rounding_count + 1, rounded[1])

    return optax.GradientTransformationExtraArgs(init, update)


def _rounded(old: Any, new: Any, random_bits: Any) -> Any:
    if is_codes(old):
        return Codes(encode(new, old.dtype, random_bits))
    is_float = is_narrow(old) and issubdtype(dtype_of(new), jnp.floating)
    return round_by(random_bits, new, old.dtype) if is_float else new


def _init_inside(init: Callable[[Any], Any], params: Params, own: str) -> Any:
    """Call the `init` inside; raise a TypeError if another `store_state`, named by `_OUTER`, called this one."""
    if outer := _OUTER.get():
        raise TypeError(
            f"{own} is inside {outer}, and both would decide how one state is stored. Give dtype to one of them: "
            "to the outer one, which may name each accumulator; or to several that are side by side in a chain or a "
            "partition"
        )
    token = _OUTER.set(own)
    try:
        return init(params)
    finally:
        _OUTER.reset(token)


def _stored(state: OptState, state_dtype: StateDtype, params: Params) -> Any:
    """Cast a new state to the dtypes in which it is stored."""
    arrays = _arrays(state, state_dtype, params)
    if is_mapping(state_dtype) and jtu.tree_leaves(params):  # a group of a partition may have none
        _check_each_key(state_dtype, arrays)

    def cast(array: _Array) -> Any:
        if array.dtype is None:
            return array.x
        is_code = is_code_dtype(array.dtype)
        return Codes(encode(array.x, array.dtype)) if is_code else lax.convert_element_type(array.x, array.dtype)

    return jtu.tree_structure(state).unflatten(map(cast, arrays))


def _check_state(state: OptState, state_dtype: StateDtype, params: Params) -> None:
    """Raise an error where state was made without this `state_dtype`: its dtypes would be kept silently."""
    for x, _, _, path, _, dtype in _arrays(state, state_dtype, params):
        if (dtype is not None or is_codes(x)) and dtype != x.dtype:
            wanted = "no codes" if dtype is None else dtype
            raise StateError(
                f"this state has {x.dtype} at {path}, where this transformation stores {wanted}. Make it again with "
                "init, or cast it: to codes with training.encode_state(state, optimizer.init(params)), from codes with "
                "training.decode_state"
            )


# ---------------------------------------------------------------------------------------------- the dtype of each array


class _Array(NamedTuple):
    """How an array of a state is stored.

    Attributes:
        x: the array, or its `Codes`.
        field: the field of the state that has it.
        is_wide: whether it needs float32 at least: an average of the params, or an accumulator of gradients.
        path: its key path, without that of the leaf of `Codes`.
        keys: the entries of `state_dtype` that match it, of which the first decides.
        dtype: the dtype in which it is stored; None if it may have any.
    """

    x: Any
    field: str
    is_wide: bool
    path: str
    keys: list[Any]
    dtype: Any


def _arrays(state: OptState, state_dtype: StateDtype, params: Params) -> list[_Array]:
    """Return how each array of a state is stored, in order."""
    entries: Mapping[Any, Any] = state_dtype if is_mapping(state_dtype) else {"**": state_dtype}
    arrays: list[_Array] = []
    for x, entry in zip(jtu.tree_leaves(state, is_leaf=is_codes), map_state(state, params), strict=True):
        path = path_name(entry.path[:-1] if is_codes(x) else entry.path)
        keys = list[Any]()
        if is_codes(x) or can_be_trained(x):  # patterns come before fields
            keys = [key for key in entries if key != entry.field and is_match(key, path)]
            keys += [key for key in entries if key == entry.field]
        array = _Array(x, entry.field, entry.field in AT_LEAST_FLOAT32.get(entry.owner, ()), path, keys, None)
        if keys:
            wanted = jax.dtypes.canonicalize_dtype(entries[keys[0]])  # f32 for f64, unless x64 is enabled now
            array = array._replace(dtype=_dtype_of(array, wanted, is_mapping(state_dtype)))
        arrays.append(array)
    return arrays


def _dtype_of(array: _Array, wanted: np.dtype[Any], by_name: bool) -> Any:
    """Return the dtype in which an array is stored for which this one is wanted; None if it cannot have that."""
    x = array.x
    if issubdtype(x.dtype, jnp.complexfloating):
        return x.dtype if x.dtype.itemsize <= 2 * wanted.itemsize else None
    if array.is_wide and wanted.itemsize < 4:
        return None if by_name else promoted_dtype(x, _FLOAT32)
    if not by_name and x.shape == () and wanted.itemsize < x.dtype.itemsize:
        return x.dtype  # in bf16, b2 = 0.999 would be 1
    if not is_code_dtype(wanted) or math.prod(x.shape) >= _SMALLEST:
        return wanted
    return _FLOAT32.dtype if is_codes(x) else promoted_dtype(x, _FLOAT32)


def _check_each_key(state_dtype: Mapping[Any, Any], arrays: list[_Array]) -> None:
    """Raise a ValueError if an entry of `state_dtype` matches nothing, or nothing that can be stored in that dtype."""
    matched = {key: [array for array in arrays if key in array.keys] for key in state_dtype}
    if unused := [key for key, of_key in matched.items() if not of_key]:
        inexact = [array for array in arrays if is_codes(array.x) or can_be_trained(array.x)]
        fields = ", ".join(sorted({array.field for array in inexact} - {""})) or "none"
        example = f". A pattern matches a whole path of the state, such as {inexact[0].path!r}" if inexact else ""
        raise ValueError(
            f"dtype names {', '.join(map(repr, unused))}, which matches nothing in the state; its fields with "
            f"floating-point arrays are {fields}{example}"
        )
    order = list(state_dtype)
    for key, of_key in matched.items():
        deciding = dict.fromkeys(array.keys[0] for array in of_key)
        if all(order.index(other) < order.index(key) for other in deciding):
            raise ValueError(
                f"dtype[{key!r}] decides about no array, since {', '.join(map(repr, deciding))} before it "
                "matches all that it does. The first pattern decides, and without one, the field"
            )
        decided = [array for array in of_key if array.keys[0] == key]
        if decided and all(array.dtype is None for array in decided):
            x, _, is_wide, path, *_ = decided[0]
            what = "an average of the params, or an accumulator of gradients, which needs float32 at least"
            if not is_wide:
                what = f"{x.dtype}, and complex numbers are not rounded"
            raise ValueError(
                f"dtype[{key!r}] is {jnp.dtype(state_dtype[key])}, and {path} is {what}: leave {key!r} out"
            )
