"""What a leaf is: an array, an array that can carry a gradient, a parameter."""

from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import numpy as np

from treekit._dtype import ARRAYS, as_array, dtype_of, stands_for_array
from treekit._jax import jnp

if TYPE_CHECKING:
    from typing_extensions import TypeIs
else:  # typing has TypeIs from Python 3.13 on; while running, any special form that takes a type will do
    TypeIs = TypeGuard


def is_array(x: object) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.number[Any] | np.bool_]:
    """True for a JAX array, a tracer, a NumPy array or a NumPy scalar; no Python number.

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


def is_inexact_array(
    x: object,
) -> TypeIs[jax.Array | np.ndarray[Any, Any] | np.inexact[Any]]:
    """True for an array that can carry a gradient: floating (bf16 and fp8 too) or complex.

    Args:
        x: any object.

    Returns:
        Whether `x` is an inexact array. Agrees with `equinox.is_inexact_array` on every object.

    >>> import jax.numpy as jnp
    >>> is_inexact_array(jnp.ones(3)), is_inexact_array(jnp.arange(3)), is_inexact_array(1.0)
    (True, False, False)
    """
    if isinstance(x, jax.Array):
        return bool(jnp.issubdtype(x.dtype, jnp.inexact))
    # NumPy's own hierarchy, as Equinox asks it: a NumPy array of an extension dtype (bf16) is not inexact there.
    return is_array(x) and bool(np.issubdtype(x.dtype, np.inexact))


def is_parameter(x: object) -> bool:
    """True for what an optimizer can do arithmetic on, and False for keys, strings and functions.

    These are numeric arrays, Python numbers, and leaves that stand for an array: a `jax.Ref`, or an object with
    `__jax_array__`.
    """
    dtype = dtype_of(x)
    if dtype is None and stands_for_array(x):
        dtype = x.dtype if isinstance(x, jax.Ref) else dtype_of(as_array(x))
    return dtype is not None and (jnp.issubdtype(dtype, np.number) or dtype == np.bool_)
