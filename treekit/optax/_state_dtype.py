"""The dtypes in which an optimizer's state is stored: one for all of it, or one for each accumulator."""

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import optax

from treekit._describe import describe_value
from treekit._jax import jnp, jtu, lax, untyped
from treekit._predicates import is_array
from treekit._round import is_inexact_dtype, widen
from treekit.optax._dtypes import cast_floats, check_held
from treekit.optax._selection import is_params_placeholder
from treekit.optax._transformation import Core, core_of
from treekit.optax._types import TransformationLike


def check_state_dtype(state_dtype: Any) -> None:
    """Raise a TypeError where it is neither None, nor a floating dtype, nor a mapping from names to such dtypes."""
    if state_dtype is None:
        return
    if not is_by_name(state_dtype):
        _check_dtype("state_dtype", state_dtype)
        return
    for name, dtype in state_dtype.items():
        if not isinstance(name, (str, re.Pattern)):
            raise TypeError(
                f"state_dtype must map names or compiled patterns to dtypes, found the key {describe_value(name)}"
            )
        _check_dtype(f"state_dtype[{name!r}]", dtype)


def _check_dtype(what: str, dtype: Any) -> None:
    if not is_inexact_dtype(dtype, jnp.floating):
        raise TypeError(f"{what} must be a floating dtype, found {dtype!r}")


def is_by_name(state_dtype: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether there is a dtype for each accumulator."""
    return isinstance(state_dtype, Mapping)


def store_by_name(tx: TransformationLike, dtypes: Mapping[Any, Any]) -> Core:
    """`tx` with the accumulators of its state in these dtypes; it computes in float32 at least."""
    inner = core_of(tx)

    def init(params: Any) -> Any:
        state = inner.init(params)
        return state if is_params_placeholder(params) else cast_state(dtypes, state)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        check_state(state, dtypes)
        new_updates, new_state = inner.update(updates, widen(state), params, **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(init, update)


def cast_state(state_dtype: Any, state: Any) -> Any:
    """The state in the dtypes that it is to be stored in.

    Raises:
        ValueError: a name or a pattern matches nothing in the state; lists the names that there are.
    """
    if not is_by_name(state_dtype):
        return state if state_dtype is None else cast_floats(state_dtype, state)
    leaves, treedef = jtu.tree_flatten_with_path(state)
    unused = set(state_dtype)
    for i, (path, x) in enumerate(leaves):
        if (name := _name_of(state_dtype, path, x)) is not None:
            unused.discard(name)
            leaves[i] = path, lax.convert_element_type(x, state_dtype[name])
    if unused and any(map(_is_float, jtu.tree_leaves(state))):
        fields = {str(key.name) for path, x in leaves if _is_float(x) for key in path if hasattr(key, "name")}
        raise ValueError(
            f"state_dtype names {', '.join(map(repr, unused))}, which decides about nothing in the state; its fields "
            f"with floating arrays are {', '.join(sorted(fields))}"
        )
    return treedef.unflatten([x for _, x in leaves])


def check_state(state: Any, state_dtype: Any) -> None:
    """Raise a TypeError where state was made without this `state_dtype`: its dtypes would be kept silently."""
    if not is_by_name(state_dtype):
        if state_dtype is not None:
            check_held(state, state_dtype)
        return
    for path, x in jtu.tree_flatten_with_path(state)[0]:
        name = _name_of(state_dtype, path, x)
        if name is not None and x.dtype != (wanted := jnp.dtype(state_dtype[name])):
            raise TypeError(
                f"state_dtype[{name!r}] is {wanted}, and the state that was given holds {x.dtype} at "
                f"{jtu.keystr(path)}. Cast it, or make it by init"
            )


def _name_of(dtypes: Mapping[Any, Any], path: Any, x: Any) -> str | re.Pattern[str] | None:
    """The name that decides about a leaf, if there is one: that of the outermost part of its path, or a pattern."""
    if not _is_float(x):
        return None
    parts = [str(untyped.tree_util.keystr((key,), simple=True)) for key in path]
    if named := [part for part in parts if part in dtypes]:
        return named[0]  # those below it are of the params
    whole = ".".join(parts)
    return next((name for name in dtypes if not isinstance(name, str) and name.search(whole)), None)


def _is_float(x: Any) -> bool:
    return is_array(x) and bool(jnp.issubdtype(x.dtype, jnp.floating))
