"""Predicates on leaves and objects: is it an array, a parameter, a function?

| a leaf | is_array | is_inexact_array | is_numeric_array | is_parameter | is_inexact_parameter | can_be_trained |
|---|---|---|---|---|---|---|
| an array of floats or complex numbers | yes | yes | yes | yes | yes | yes |
| one of NumPy in bf16 or in 8 bits | yes | no, as in Equinox | yes | yes | yes | yes |
| a `jax.ShapeDtypeStruct` of floats | no | no | yes | yes | yes | yes |
| a `jax.Ref` to floats | no | no | no | yes | yes | yes |
| an object with `__jax_array__`, of floats | no | no | no | yes | yes | no |
| a Python float or complex number | no | no | no | yes | yes | no; `_trained` asks where it is |
| an array of integers or bools | yes | no | yes | yes | no | no |
| a Python int or bool | no | no | no | yes | no | no |
| an array of PRNG keys | yes | no | no | no | no | no |
| a string, a function, any other object | no | no | no | no | no | no |
"""

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, overload

import jax
import numpy as np
from jax.core import Tracer

from treekit._base.dtype import (
    ARRAYS,
    as_array,
    dtype_of,
    has_dtype,
    is_number,
    issubdtype,
    resolve_array,
    stands_for_array,
)
from treekit._base.jax import is_ref, jnp, jtu

if TYPE_CHECKING:
    from typing_extensions import TypeIs
else:  # typing has TypeIs from Python 3.13 on; at run time, any special form that takes a type will do
    TypeIs = TypeGuard


def is_array(x: object) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.number[Any] | np.bool_]:
    """Return True for JAX arrays, tracers, NumPy arrays and NumPy scalars, and False for Python numbers.

    Args:
        x: any object.

    Returns:
        Whether `x` is an array. Agrees with `equinox.is_array` on every object.

    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> is_array(jnp.ones(3)), is_array(np.float32(1)), is_array(1.0)
    (True, True, False)
    """
    return isinstance(x, ARRAYS)


def is_inexact_array(x: object) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.inexact[Any]]:
    """Return True for arrays that can have a gradient: floating-point and complex ones.

    Arrays of JAX in bf16 and fp8 are among them; NumPy arrays in these dtypes are not.

    Args:
        x: any object.

    Returns:
        Whether `x` is an inexact array. Agrees with `equinox.is_inexact_array` on every object.

    >>> import jax.numpy as jnp
    >>> is_inexact_array(jnp.ones(3)), is_inexact_array(jnp.arange(3)), is_inexact_array(1.0)
    (True, False, False)
    """
    if isinstance(x, jax.Array):
        return issubdtype(x.dtype, jnp.inexact)
    # NumPy's own type hierarchy, as in Equinox: a NumPy array of an extension dtype (bf16) is not inexact.
    return is_array(x) and bool(np.issubdtype(x.dtype, np.inexact))


def is_parameter(x: object) -> bool:
    """Return True for leaves that can be parameters, and False for PRNG keys, strings, functions and other objects.

    Parameters are numeric arrays, Python numbers, `jax.Ref`s, and objects with `__jax_array__`.
    """
    dtype = dtype_of(x)
    if dtype is None and stands_for_array(x):
        dtype = x.dtype if is_ref(x) else dtype_of(as_array(x))
    return dtype is not None and is_number(dtype)


def is_inexact_parameter(x: object) -> bool:
    """Return True for parameters that are floating-point or complex."""
    return is_parameter(x) and issubdtype(dtype_of(resolve_array(x)), jnp.inexact)


def can_be_trained(x: object) -> bool:
    """Whether an optimizer can train a leaf: a floating-point or complex array of JAX or NumPy, also one in bf16.

    A `jax.Ref` counts as its array, and so does what has only the shape and the dtype of one.
    """
    return issubdtype(x.dtype if is_ref(x) else dtype_of(x) if has_dtype(x) else None, jnp.inexact)


def is_numeric_array(x: object) -> bool:
    """Whether `x` is an array of numbers or bools, as files have them; a Python number and an array of keys are not."""
    return has_dtype(x) and is_number(x.dtype)


def is_real_number(x: Any) -> bool:
    """Whether `x` is a number of shape (), floating-point or integer; bools are not."""
    dtype = dtype_of(x)
    return (issubdtype(dtype, jnp.floating) or issubdtype(dtype, jnp.integer)) and np.shape(x) == ()


def is_traced(x: object) -> bool:
    """Whether a leaf is a tracer, whose value is not known."""
    return isinstance(x, Tracer)


def is_narrow(x: Any) -> bool:
    """Whether `x` is an array, or a ShapeDtypeStruct, of floating-point numbers of less than 32 bits."""
    return has_dtype(x) and issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits < 32


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
    if jtu.all_leaves([x]) or isinstance(x, jax.tree_util.Partial):
        return True

    def has(*names: str) -> bool:
        # getattr_static, since a class with __getattr__ may have an attribute of any name.
        return all(inspect.getattr_static(x, name, None) is not None for name in names)

    is_wrapper = has("__wrapped__") or has("__func__") or has("func", "args", "keywords")
    return is_wrapper or all(map(callable, jtu.tree_leaves(x)))
