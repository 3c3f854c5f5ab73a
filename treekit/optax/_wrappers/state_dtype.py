"""Store an optimizer's state in given dtypes: one for all of it, or one for each accumulator."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import optax
from jax.typing import DTypeLike

from treekit._base.describe import describe_value
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu, lax
from treekit._base.key_path import is_variable, path_name
from treekit._base.patterns import matches
from treekit._base.predicates import is_array
from treekit._base.states import is_state
from treekit._base.tree import is_mapping
from treekit._base.types import KeyPath, OptState, Params, PyTree, Updates
from treekit._round import is_inexact_dtype, widen
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import Core, core_of
from treekit.optax._kernel.types import TransformationLike


def check_state_dtype(state_dtype: Any) -> None:
    """Raise a TypeError unless `state_dtype` is None, a floating-point dtype, or a mapping from names to dtypes."""
    if state_dtype is None:
        return
    if not is_mapping(state_dtype):
        _check_dtype("state_dtype", state_dtype)
        return
    for name, dtype in state_dtype.items():
        if not isinstance(name, (str, re.Pattern)):
            raise TypeError(
                f"state_dtype must map names or compiled patterns to dtypes, found the key {describe_value(name)}"
            )
        _check_dtype(f"state_dtype[{name!r}]", dtype)


def _check_dtype(what: str, dtype: object) -> None:
    if not is_inexact_dtype(dtype, jnp.floating):
        raise TypeError(f"{what} must be a floating dtype, found {dtype!r}")


def store_in(tx: TransformationLike, dtype: DTypeLike) -> Core:
    """Return a core that stores the floating-point state of `tx` in this dtype, and computes in it."""
    inner_init, inner_update = core_of(tx)

    def init(params: Params) -> Any:
        return cast_state(dtype, inner_init(_cast_floats(dtype, params)))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        check_state(state, dtype)
        new_updates, new_state = inner_update(_cast_floats(dtype, updates), state, _cast_floats(dtype, params), **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def store_by_name(tx: TransformationLike, dtypes: Mapping[Any, Any]) -> Core:
    """Return a core that stores the accumulators of `tx` in these dtypes, and computes in float32 at least."""
    inner_init, inner_update = core_of(tx)

    def init(params: Params) -> Any:
        state = inner_init(params)
        return state if is_params_placeholder(params) else cast_state(dtypes, state)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        check_state(state, dtypes)
        new_updates, new_state = inner_update(updates, widen(state), params, **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def cast_state(state_dtype: Any, state: OptState) -> Any:
    """Cast the state to the dtypes in which it is stored.

    Raises:
        ValueError: a name or a pattern matches nothing in the state; the message lists the names that do.
    """
    if not is_mapping(state_dtype):
        return state if state_dtype is None else _cast_floats(state_dtype, state)
    leaves, treedef = jtu.tree_flatten_with_path(state)
    unused = set(state_dtype)
    for i, (path, x) in enumerate(leaves):
        if (name := _name_of(state_dtype, state, path, x)) is not None:
            unused.discard(name)
            leaves[i] = path, lax.convert_element_type(x, _canonical(state_dtype[name]))
    if unused and any(map(_is_float, jtu.tree_leaves(state))):
        fields = {str(key.name) for path, x in leaves if _is_float(x) for key in path if hasattr(key, "name")}
        raise ValueError(
            f"state_dtype names {', '.join(map(repr, unused))}, which matches nothing in the state; its fields "
            f"with floating-point arrays are {', '.join(sorted(fields))}"
        )
    return treedef.unflatten([x for _, x in leaves])


def check_state(state: OptState, state_dtype: Any) -> None:
    """Raise a TypeError where state was made without this `state_dtype`: its dtypes would be kept silently."""
    if state_dtype is None:
        return
    for path, x in jtu.tree_flatten_with_path(state)[0]:
        what, wanted = _stored_dtype(state_dtype, state, path, x)
        if wanted is not None and x.dtype != wanted:
            raise TypeError(
                f"{what} is {jnp.dtype(wanted)}, and this state has {x.dtype} at {jtu.keystr(path)}. Cast it, or make "
                "it again with init"
            )


def _stored_dtype(state_dtype: Any, state: OptState, path: KeyPath, x: Any) -> tuple[str, Any]:
    """Return the argument that decides in which dtype a leaf is stored, and that dtype; None if it may have any."""
    if not is_mapping(state_dtype):
        return "state_dtype", _held_dtype(state_dtype, x) if _is_float(x) and x.shape else None
    name = _name_of(state_dtype, state, path, x)
    return f"state_dtype[{name!r}]", None if name is None else _canonical(state_dtype[name])


def _cast_floats(dtype: DTypeLike, tree: PyTree) -> Any:
    def cast(x: Any) -> Any:
        return lax.convert_element_type(x, _held_dtype(dtype, x)) if _is_float(x) else x

    return jtu.tree_map(cast, tree)


def _held_dtype(dtype: DTypeLike, x: Any) -> Any:
    """Return the dtype in which a float is stored: numbers of shape () are not narrowed, as b2 = 0.999 is 1 in bf16."""
    wanted = _canonical(dtype)
    is_narrowed = jnp.finfo(wanted).bits < jnp.finfo(x.dtype).bits
    return x.dtype if is_narrowed and x.shape == () else wanted


def _canonical(dtype: DTypeLike) -> Any:
    """Return the dtype that JAX uses for this one: f32 for f64, unless x64 is enabled when this is called."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _name_of(dtypes: Mapping[Any, Any], state: OptState, path: KeyPath, x: object) -> str | re.Pattern[str] | None:
    """Return the name or pattern that decides about a leaf, if any: the name of the outermost part, or a pattern."""
    if not _is_float(x):
        return None
    parts = [path_name((key,)) for key in path]
    if named := [part for part in parts[: _depth(state, path)] if part in dtypes]:
        return named[0]
    whole = ".".join(parts)

    def fits(name: str | re.Pattern[str]) -> bool:
        return matches(name, whole) if isinstance(name, str) else bool(name.search(whole))

    return next(filter(fits, dtypes), None)


def _depth(state: OptState, path: KeyPath) -> int:
    """Return how many keys of a path are not names in the params: those up to the field of the innermost state."""
    node: Any = state
    depth = 0
    for i, key in enumerate(path):
        if is_state(type(node)):
            depth = i + 1
        elif depth and i == depth and getattr(path[i - 1], "name", None) == "hyperparams":
            depth = i + 1  # its name
        if is_variable(node):  # of Flax: what is below is a param
            break
        elif hasattr(key, "name"):
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            node = node[key.key]
        else:
            break
    return depth or len(path)


def _is_float(x: object) -> bool:
    return is_array(x) and issubdtype(x.dtype, jnp.floating)
