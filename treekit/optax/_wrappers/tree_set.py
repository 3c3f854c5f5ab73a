"""`optax.tree.set`, which stores numbers as arrays."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import optax

from treekit._arrays.cast import array_like
from treekit._base.bounds import holds
from treekit._base.dtype import dtype_of, strengthen
from treekit._base.jax import jtu
from treekit._base.memory import unshared
from treekit._base.predicates import is_array, is_real_number

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
    if np.shape(old) == () and holds(new, dtype_of(old)):
        with contextlib.suppress(TypeError):  # a float for an int
            return array_like(old, new)
    return strengthen(new)
