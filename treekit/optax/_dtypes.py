"""The second kernel: state and updates keep their dtypes and their structure."""

from typing import Any

import jax
import optax
from jax.core import Tracer

from treekit._diff import tree_diff
from treekit._dtype import promoted_dtype, strengthen
from treekit._jax import jnp, jtu, lax, untyped
from treekit._map import cast_each, cast_tree_like
from treekit._predicates import is_array
from treekit.optax._sharding import shard_alike
from treekit.optax._transformation import Apply, WholeStep, core_of
from treekit.optax._types import TransformationLike


def preserve_dtypes(tx: TransformationLike, *, state_dtype: Any = None) -> optax.GradientTransformationExtraArgs:
    """Give every leaf of the state the dtype it came in with, and every update the wider of its gradient's and param's.

    Args:
        tx: any transformation.
        state_dtype: floating state is held in this dtype, and computed in it.

    Raises:
        TypeError: `tx` is no transformation; or the state or the updates that `tx.update` returns have another
            structure than those it was given.
    """
    inner = core_of(tx)

    def cast(tree: Any) -> Any:
        return tree if state_dtype is None else cast_floats(state_dtype, tree)

    def init(params: Any) -> Any:
        state = jtu.tree_map(strengthen, cast(inner.init(cast(params))))
        return _own_arrays(shard_alike(state, params), params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if state_dtype is not None:
            check_held(state, state_dtype)
        new_updates, new_state = inner.update(cast(updates), state, cast(params), **extra)
        leaves, treedef = jtu.tree_flatten(updates)
        kept = keep_updates(leaves, treedef, params, new_updates)
        return treedef.unflatten(kept), keep_state(state, params, new_state)

    return optax.GradientTransformationExtraArgs(init, update)


def preserve_step_dtypes(step: WholeStep) -> WholeStep:
    """Do for a whole step what `preserve_dtypes` does for an update."""

    def preserved(updates: Any, state: Any, params: Any, extra: dict[str, Any], apply: Apply) -> tuple[Any, Any]:
        def apply_kept(params: Any, new_updates: Any) -> Any:
            leaves, treedef = jtu.tree_flatten(updates)
            return apply(params, treedef.unflatten(keep_updates(leaves, treedef, params, new_updates)))

        new_params, new_state = step(updates, state, params, extra, apply_kept)
        return new_params, keep_state(state, params, new_state)

    return preserved


def keep_updates(leaves: list[Any], treedef: Any, params: Any, new_updates: Any) -> list[Any]:
    """New updates, leaf by leaf, each in the wider dtype of its gradient and its param.

    Args:
        leaves: the gradients.
        treedef: their structure.
        params: the params, or None.
        new_updates: what a transformation made of the gradients.
    """
    updates = treedef.unflatten(leaves)
    news = _parts_of_updates(updates, treedef, new_updates)
    if _mixes_complex(params):
        news = list(map(_real_where_real, leaves, news))
    return cast_each(news, _like_each(leaves, treedef, params), updates)


def keep_state(state: Any, params: Any, new_state: Any) -> Any:
    """A new state in the structure and the dtypes of the one before it."""
    _check_state(state, new_state)
    if _mixes_complex(params):
        new_state = jtu.tree_map(_real_where_real, state, new_state)
    return _keep_state_dtypes(new_state, state)


def _own_arrays(state: Any, params: Any) -> Any:
    """The state with no array twice, and none of the params': JAX donates an array once."""
    seen = {id(x) for x in jtu.tree_leaves(params)}

    def own(x: Any) -> Any:
        if id(x) in seen and _is_concrete(x):
            return jnp.copy(x)
        seen.add(id(x))
        return x

    return jtu.tree_map(own, state)


def _is_concrete(x: object) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, Tracer)


def _keep_state_dtypes(new: Any, old: Any) -> Any:
    def like(old_leaf: Any, new_leaf: Any) -> Any:
        # A user who writes a Python number into the state, hyperparams["learning_rate"] = 0.1, states no dtype.
        return old_leaf if is_array(old_leaf) else strengthen(new_leaf)

    try:
        return cast_tree_like(jtu.tree_map(like, old, new), new)
    except TypeError as error:
        found = str(error).partition(";")[0]
        raise TypeError(
            f"update changed a dtype of the state, which scan and cond reject, and a cast would lose values: {found}. "
            "Let the init of the transformation make this leaf in the dtype that its update computes, such as "
            "jnp.zeros([], jnp.float32) for 0"
        ) from None


def _mixes_complex(params: Any) -> bool:
    return len({_is_complex(x) for x in jtu.tree_leaves(params)}) > 1


def _is_complex(x: Any) -> bool:
    return is_array(x) and bool(jnp.issubdtype(x.dtype, jnp.complexfloating))


def _real_where_real(old: Any, new: Any) -> Any:
    """The real part of what is complex now and was real.

    Beside complex params, prodigy, momo and D-Adaptation estimate a rate, a real number, as a complex one.
    """
    return jnp.real(new) if _is_complex(new) and is_array(old) and not _is_complex(old) else new


def like_updates(updates: Any, params: Any) -> Any:
    """What has the dtypes that updates come out with: the wider of a gradient's and its param's.

    An integer without a param asks for none: the update is what the transformation makes of it, a float in most.
    """
    leaves, treedef = jtu.tree_flatten(updates)
    return treedef.unflatten(_like_each(leaves, treedef, params))


def _like_each(updates: list[Any], treedef: Any, params: Any) -> list[Any]:
    if params is None or jtu.tree_structure(params) != treedef:
        dtypes = [promoted_dtype(x) for x in updates]
        return [_of_dtype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else _ANY_DTYPE for dtype in dtypes]
    return [_of_dtype(promoted_dtype(x, param)) for x, param in zip(updates, jtu.tree_leaves(params), strict=True)]


def _of_dtype(dtype: Any) -> Any:
    return untyped.ShapeDtypeStruct((), dtype)


_ANY_DTYPE = object()


def cast_floats(dtype: Any, tree: Any) -> Any:
    """Floating arrays in another dtype, as far as `_held_dtype` says."""

    def cast(x: Any) -> Any:
        return lax.convert_element_type(x, _held_dtype(dtype, x)) if is_array(x) else x

    return jtu.tree_map(cast, tree)


def _held_dtype(dtype: Any, x: Any) -> Any:
    """No number of shape () is held in fewer bits: in bf16, b2 = 0.999 would be 1."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    is_kept = is_float and x.shape == () and jnp.finfo(dtype).bits < jnp.finfo(x.dtype).bits
    return dtype if is_float and not is_kept else x.dtype


def check_held(state: Any, dtype: Any) -> None:
    """Raise a TypeError where state was made without this `state_dtype`: its dtypes would be kept silently."""
    for path, x in jtu.tree_flatten_with_path(state)[0]:
        if is_array(x) and x.shape and x.dtype != (wanted := _held_dtype(dtype, x)):
            raise TypeError(
                f"state_dtype is {jnp.dtype(wanted)}, and the state that was given holds {x.dtype} at "
                f"{jtu.keystr(path)}. Cast it, or make it by init"
            )


def _check_state(old: Any, new: Any) -> None:
    if jtu.tree_structure(old) != jtu.tree_structure(new):
        raise TypeError(
            "update returned a state of another structure than it was given, which scan and cond reject.\n"
            f"given | returned:\n{tree_diff(old, new, values=False)}"
        )


def _parts_of_updates(old: Any, treedef: Any, new: Any) -> list[Any]:
    """The updates where `old`, of this structure, has leaves; None may come out for a leaf, as filtered freezes it."""
    try:
        parts: list[Any] = treedef.flatten_up_to(new)
    except ValueError:
        parts = [()]
    if not all(part is None or jtu.all_leaves([part]) for part in parts):
        raise TypeError(
            "update returned updates of another structure than it was given. A transformation that does so by design, "
            "such as optax.lookahead, cannot be wrapped; use it as it is, outermost.\n"
            f"given | returned:\n{tree_diff(old, new, values=False)}"
        )
    return parts
