"""Distinguish functions from callable pytrees."""

import inspect
import types
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar, overload

import jax

from treekit._base.jax import jtu

F = TypeVar("F", bound=Callable[..., Any])


@overload
def is_truly_callable(x: F) -> TypeGuard[F]: ...
@overload
def is_truly_callable(x: object) -> TypeGuard[Callable[..., Any]]: ...
def is_truly_callable(x: object) -> bool:
    """Return True if `x` is meant to be called, and False if it is meant to be used as a pytree.

    Functions, classes, bound methods, `functools.partial` and other callables that are not pytree nodes are meant to be
    called. So are nodes that wrap a function, whatever they bind: `jax.tree_util.Partial`, and nodes with
    `__wrapped__`, with `__func__`, or with func, args and keywords. Any other callable node, such as a model or a mask
    made from one, is a tree, unless all of its leaves are callable.

    Args:
        x: any object.

    Returns:
        Whether to call `x`.

    >>> import jax
    >>> import equinox as eqx
    >>> model = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    >>> mask = jax.tree.map(lambda leaf: leaf.ndim > 1, model)
    >>> callable(mask), is_truly_callable(mask), is_truly_callable(lambda params: mask)
    (True, False, True)
    """
    if isinstance(x, types.FunctionType):
        return True
    if not callable(x):
        return False
    return jtu.all_leaves([x]) or _stands_for_function(x) or all(map(callable, jtu.tree_leaves(x)))


def _stands_for_function(x: object) -> bool:
    # getattr_static, since a class with __getattr__ may have an attribute of any name.
    def has(*names: str) -> bool:
        return all(inspect.getattr_static(x, name, None) is not None for name in names)

    return (
        isinstance(x, jax.tree_util.Partial) or has("__wrapped__") or has("__func__") or has("func", "args", "keywords")
    )
