"""`store_state`: choose the dtype and the rounding of a transformation's state.

`_rules` say in which dtype each array is stored. `_rounding_to_nearest` returns a core that casts its inputs only: the
boundary casts the results of every core back. `_rounding_at_random` returns one that rounds its results itself.
"""

import itertools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, overload

from treekit._arrays.map import dtype_preserving_tree_map
from treekit._arrays.round import bits_like, hash_bits, round_by, widen
from treekit._base.context import setting
from treekit._base.dtype import dtype_of, issubdtype, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import can_be_trained, is_narrow
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._names.key_path import path_name
from treekit._text.describe import describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.misfit import StateError
from treekit.optax._kernel.preserve import preserving
from treekit.optax._kernel.state_map import Entry
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._kernel.types import S
from treekit.training._rules import Rules, StateDtype, with_entries


class StochasticRoundingState(NamedTuple):
    """State that is rounded stochastically.

    Attributes:
        rounding_count: the number of updates so far, which determines the random bits; uint32, shape ().
        inner_state: the state of the inner transformation.
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
    inner: TransformationLike, dtype: StateDtype = None, *, rounding: Literal["nearest", "stochastic"], seed: int = 0
) -> GradientTransformation[Any]: ...
def store_state(
    inner: TransformationLike,
    dtype: StateDtype = None,
    *,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int = 0,
) -> GradientTransformation[Any]:
    """Choose the dtype in which the state of a transformation is stored, and how it is rounded.

    `init` makes weak types strong. `update` returns every leaf of the state in the dtype that it had before. So scan
    and cond accept the state, and jit traces once.

    In bf16, `0.999 * v` rounds to `v`: a second moment that was large once never decays. There are two solutions.
    `dtype=jnp.float32` stores the state in f32. `rounding="stochastic"` stores it in 16 bits, computes in f32, and
    rounds at random, without bias.

    Args:
        inner: any transformation.
        dtype: a floating-point dtype in which all floating-point state is stored, whatever the dtypes of the
            params. Numbers of shape () are not narrowed, since some are hyperparameters; copies and averages of
            params and accumulators of gradients are stored in f32 at least, and complex arrays keep their dtype. By
            default, state has the dtypes that `inner.init` gives it. Or a dtype for each accumulator,
            `{"mu": jnp.bfloat16, "nu": jnp.float32}`: other state keeps its dtype. A key is the
            name of a field of the state, or a pattern as in `treekit.path_mask`: a glob such as "**.mu.embed.**", or a
            compiled regular expression, that matches the whole key path in the state, "0.mu.embed.table". The first
            pattern that matches decides; without one, the field.
        rounding: how state and updates of less than 32 bits are rounded. "nearest": `inner` computes in the dtypes that
            it receives. With a `dtype`, it computes in f32 at least, and in that dtype at least. "stochastic": it
            computes in f32 at least, and the results are rounded at random: each update to the wider of its gradient's
            and its param's dtype.
        seed: determines the random bits, together with the numbers of the update and of the leaf. So a run can be
            repeated, stopped and resumed, on any number of devices. Use another seed for each such transformation.

    Returns:
        A transformation; its state has the structure of that of `inner`. With rounding="stochastic" it is a
        `StochasticRoundingState`, a NamedTuple of a count (`rounding_count`) and that state (`inner_state`).

    Raises:
        TypeError: `dtype` is not a floating-point dtype of 16 bits or more; `seed` is not an int. Or, raised by `init`,
            `inner` contains another `store_state` with a `dtype` or with stochastic rounding. Or, raised by `update`,
            `inner` changes the structure of the state or of the updates (the message lists the differences), or the
            state was made with another `dtype`.
        ValueError: `rounding` has another value. Or, raised by `init`, an entry of `dtype` matches nothing in the state
            (the message lists its fields), or nothing that can be stored in that dtype: an average of the params or an
            accumulator of gradients in less than f32, or complex arrays.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = store_state(optax.radam(1e-3))
    >>> params = jnp.ones(2, jnp.bfloat16)
    >>> state = tx.init(params)
    >>> _, new_state = tx.update(jnp.ones(2, jnp.float32), state, params)
    >>> state[0].nu.dtype, new_state[0].nu.dtype
    (dtype(bfloat16), dtype(bfloat16))
    """
    if rounding not in ("nearest", "stochastic"):
        raise ValueError(f"rounding must be 'nearest' or 'stochastic', found {describe_value(rounding)}")
    if type(seed) is not int:
        raise TypeError(f"seed must be an int, found {describe_value(seed)}")
    rules, core = Rules(dtype), core_of(inner)
    if dtype is None and rounding == "nearest":
        return at_boundary(core)
    described = f"store_state(dtype={describe_value(dtype)}, rounding={rounding!r})"
    if rounding == "nearest":
        return at_boundary(_rounding_to_nearest(core, rules, described))
    return at_boundary(_rounding_at_random(core, rules, described, seed))


def _rounding_to_nearest(inner: Core, rules: Rules, described: str) -> Core:
    """Return a core that stores the state of `inner` as the rules say, and computes in f32 at least."""
    inner_init, inner_update = inner

    def widened(tree: PyTree) -> Any:
        """Cast a tree to the dtype that is for all state, at least; without one, return it unchanged."""
        if rules.for_all is None:
            return tree
        wanted = untyped.ShapeDtypeStruct((), jnp.dtype(rules.for_all))

        def cast(x: Any) -> Any:
            is_float = can_be_trained(x) and not jnp.iscomplexobj(x)
            return lax.convert_element_type(x, promoted_dtype(x, wanted)) if is_float else x

        return jtu.tree_map(cast, tree)

    def init(params: Params) -> Any:
        return _cast_first_state(_init_inside(inner_init, widened(params), described), rules, params)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        _check_state(state, rules, updates if params is None else params)
        inputs = widened(widen(updates)), widen(state), widened(widen(params))
        out: tuple[Any, Any] = inner_update(*inputs, **extra)
        return out

    return Core(init, update)


def _rounding_at_random(inner: Core, rules: Rules, described: str, seed: int) -> Core:
    """Return a core that computes in f32, and rounds narrow state and updates stochastically."""
    inner_init, inner_update = preserving(inner)

    def init(params: Params) -> StochasticRoundingState:
        state = _cast_first_state(_init_inside(inner_init, params, described), rules, params)
        return StochasticRoundingState(jnp.zeros([], jnp.uint32), state)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        if not isinstance(state, StochasticRoundingState):
            raise StateError(
                "rounding='stochastic' needs the StochasticRoundingState that its init makes, found an "
                f"instance of {type(state).__name__}. " + _advice(", fresh=['**.rounding_count']")
            )
        _check_state(state.inner_state, rules, updates if params is None else params)
        inputs = widen(updates), widen(state.inner_state), widen(params)
        new_updates, new_state = inner_update(*inputs, **extra)
        random_bits = hash_bits(seed % 2**32, seed >> 32 & 0xFFFFFFFF, state.rounding_count)
        # Updates and state as one tree, in which each array has a number, and so bits of its own.
        likes = _rounded_like(updates, params, new_updates), state.inner_state
        rounded: Any = dtype_preserving_tree_map(
            _round_array, likes, (new_updates, new_state), bits_like(likes, random_bits)
        )
        return rounded[0], StochasticRoundingState(state.rounding_count + 1, rounded[1])

    return Core(init, update)


def _rounded_like(updates: Updates, params: Params, new_updates: Updates) -> Any:
    """Return what has the dtypes to which updates are rounded: the wider one of gradient and param for each.

    Without params, a gradient may be an integer, whose update is not rounded.
    """

    def wider(new: Any, *given: Any) -> Any:
        dtype = promoted_dtype(*given)
        return untyped.ShapeDtypeStruct(new.shape, dtype) if issubdtype(dtype, jnp.inexact) else new

    return jtu.tree_map(wider, new_updates, updates, *([] if params is None else [params]))


def _round_array(old: Any, new: Any, random_bits: Any) -> Any:
    """Return a new array in the dtype of the old one, rounded at random where that is narrow."""
    is_float = is_narrow(old) and issubdtype(dtype_of(new), jnp.floating)
    return round_by(random_bits, new, old.dtype) if is_float else new


# What the user calls the `store_state` whose `init` is running. Another one inside of it is found when its `init` runs
# too. It can only be found then, since Optax may hide it in a closure, or a factory may make it late.
_OUTER: ContextVar[str] = ContextVar("outer", default="")


def _init_inside(init: Callable[[Any], Any], params: Params, described: str) -> Any:
    """Call the `init` inside; raise a TypeError if this one was called by that of another `store_state`."""
    if outer := _OUTER.get():
        raise TypeError(
            f"{described} is inside {outer}, and both would decide how one state is stored. Give dtype to one of them: "
            "to the outer one, which may name each accumulator; or to several that are side by side in a chain or a "
            "partition"
        )
    with setting(_OUTER, described):
        return init(params)


def _cast_first_state(state: OptState, rules: Rules, params: Params) -> Any:
    """Cast the state that `init` made to the dtypes in which it is stored."""
    arrays = with_entries(state, params)
    if jtu.tree_leaves(params):  # a group of a partition may have none
        rules.check_used(arrays)

    def cast(x: Any, entry: Entry) -> Any:
        dtype = rules.stored_dtype(x, entry)
        return x if dtype is None or dtype == x.dtype else lax.convert_element_type(x, dtype)

    return jtu.tree_structure(state).unflatten(itertools.starmap(cast, arrays))


def _advice(fresh: str = "") -> str:
    return (
        "Make it again with init; or, if only dtypes and rounding differ, convert it: "
        f"treekit.graft(optimizer.init(params), state, cast=True{fresh})[0]"
    )


def _check_state(state: OptState, rules: Rules, params: Params) -> None:
    """Raise an error where state was made without these rules: its dtypes would be kept silently."""
    for x, entry in with_entries(state, params):
        dtype = rules.stored_dtype(x, entry)
        if dtype is not None and dtype != x.dtype:
            raise StateError(
                f"this state has {x.dtype} at {path_name(entry.path)}, where this transformation stores {dtype}. "
                + _advice()
            )
