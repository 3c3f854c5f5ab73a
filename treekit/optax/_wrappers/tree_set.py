"""`optax.tree.set`, which stores numbers as arrays."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from jax.core import Tracer

from treekit._base.dtype import cast_like, check_fits, dtype_of, is_weak, issubdtype, strengthen
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.memory import copied, unshared
from treekit._base.predicates import is_array, is_real_number, is_traced

S = TypeVar("S")

_optax_tree_set = optax.tree.set


def tree_set(tree: S, filtering: Callable[[Any, Any], bool] | None = None, /, **kwargs: Any) -> S:
    """Do what `optax.tree.set` does, and store numbers as arrays, so that a jitted step is not traced again.

    Args:
        tree: a state, or any other tree.
        filtering: takes a key path and a value, and returns whether to replace it; by default all are replaced.
        **kwargs: new values by key, field, or name of a NamedTuple. A Python number that replaces an array gets its
            dtype, if that can represent it, and its sharding.

    Returns:
        A tree with the new values. It has copies of the arrays that you pass, so that a step can donate it.

    Raises:
        KeyError: no value has this key, or `filtering` rejects those that have.

    >>> from treekit import optax
    >>> state = optax.inject_hyperparams(optax.sgd)(0.1).init({"w": 0.0})
    >>> tree_set(state, learning_rate=1).hyperparams["learning_rate"]
    Array(1., dtype=float32)
    """
    new = _optax_tree_set(tree, filtering, **kwargs)
    olds, treedef = jtu.tree_flatten(tree)
    news, new_treedef = jtu.tree_flatten(new)
    if treedef == new_treedef:  # else a subtree was replaced by one of another structure
        news = list(map(_as_number_like, olds, news))
    out: S = new_treedef.unflatten(unshared(news, jtu.tree_leaves(kwargs)))
    return out


def _as_number_like(old: Any, new: Any) -> Any:
    if is_array(new) or not (is_array(old) and is_real_number(new)):
        return new
    try:
        return cast_into(old, new) if np.shape(old) == () else strengthen(new)
    except (TypeError, OverflowError):  # a float for an int
        return strengthen(new)


def cast_into(old: Any, value: Any) -> Any:
    """Return a value as an array of its own, with the dtype, weak type, shape and sharding of another array."""
    check_fits(value, dtype_of(old))
    new = jnp.asarray(cast_like(copied(value), old))
    if np.shape(new) != np.shape(old):
        new = jnp.broadcast_to(new, np.shape(old))
    if is_weak(old):
        new = lax.full_like(old, new)
    if isinstance(old, jax.Array) and not isinstance(old, Tracer) and old.committed:
        new = untyped.device_put(new, old.sharding)
    return new


def fits(x: Any, dtype: Any) -> bool:
    """Whether an array of this dtype holds ints exactly, and any other number without becoming infinite or an int."""
    try:
        check_fits(x, dtype)
        is_plain = isinstance(x, (int, float)) or (is_array(x) and not issubdtype(x.dtype, jax.dtypes.prng_key))
        if isinstance(x, bool) or not is_plain or is_traced(x):
            return True
        is_integer = issubdtype(dtype_of(x), jnp.integer)
        numbers = np.asarray(x).ravel().tolist() if is_integer or np.shape(x) == () else []
        if issubdtype(dtype, jnp.integer):
            return all(int(n) == n and jnp.iinfo(dtype).min <= int(n) <= jnp.iinfo(dtype).max for n in numbers)
        return not is_integer or all(int(np.real(np.asarray(float(n)).astype(dtype))) == n for n in numbers)
    except (OverflowError, ValueError):  # ValueError for the int of a NaN
        return False
