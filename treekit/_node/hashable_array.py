"""`HashableArray`: an array that can be static, since it is compared and hashed by value."""

from typing import Any, NoReturn

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from treekit._base.dtype import is_number, issubdtype
from treekit._base.predicates import is_traced
from treekit._text.describe import describe_value


class HashableArray:
    """A read-only copy of an array that is compared and hashed by its dtype, shape and bytes.

    Use it for arrays that are part of the structure, such as a table of indices or a fixed stencil: as the value of a
    static field, in a tuple of static values, as a static argument of `jax.jit`. `jit` compiles again for other values,
    and not for equal ones. Large arrays and those that change belong in data fields.

    NaN equals NaN if the bits are the same, and 0.0 differs from -0.0. `numpy.asarray` and `jax.numpy.asarray` return
    the array.

    Args:
        x: an array, a number, a list of numbers, or a `HashableArray`. It is copied to the host.

    Raises:
        TypeError: `x` is traced, so its values are not known; or it is not an array of numbers or bools: a string, an
            object, an array of PRNG keys.

    >>> import jax.numpy as jnp
    >>> from treekit import field, node
    >>> @node
    ... class Stencil:
    ...     weights: HashableArray = field(static=True, converter=HashableArray)
    ...     def __call__(self, x):
    ...         return jnp.convolve(x, jnp.asarray(self.weights), mode="same")
    >>> a, b = Stencil(jnp.array([1.0, -2.0, 1.0])), Stencil(jnp.array([1.0, -2.0, 1.0]))
    >>> jax.tree.structure(a) == jax.tree.structure(b), jax.jit(Stencil.__call__)(a, jnp.ones(3))
    (True, Array([-1.,  0., -1.], dtype=float32))
    """

    __slots__ = ("_array", "_bytes", "_hash")
    _array: NDArray[np.generic]
    _bytes: bytes
    _hash: int

    def __init__(self, x: "ArrayLike | HashableArray") -> None:
        leaves = jax.tree.leaves(x)
        if any(map(is_traced, leaves)):
            raise TypeError(
                "HashableArray needs the values of an array, which are not known while JAX traces a function. Make it "
                "outside of jit, vmap and grad, or store the array in a field that is not static"
            )
        if any(isinstance(leaf, jax.Array) and issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
            raise TypeError("HashableArray does not take PRNG keys: pass jax.random.key_data(key)")
        array: NDArray[np.generic] = np.asarray(x)
        if not is_number(array.dtype):
            kind = "objects" if array.dtype.hasobject else f"dtype {array.dtype}"
            raise TypeError(f"HashableArray takes arrays of numbers, found {describe_value(x)}, an array of {kind}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX's arrays have no other byte order
        content = array.tobytes()
        # Unlike a flag, a buffer of `bytes` makes the array read-only for good.
        set_attribute = object.__setattr__
        set_attribute(self, "_array", np.ndarray(array.shape, array.dtype, buffer=content))
        set_attribute(self, "_bytes", content)
        set_attribute(self, "_hash", hash((array.dtype, array.shape, content)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        dtype: np.dtype[Any] = self._array.dtype
        return dtype

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.generic]:
        array = self._array if dtype is None else self._array.astype(dtype, copy=False)
        if copy is False and array is not self._array:
            raise ValueError(f"a HashableArray of dtype {self.dtype} cannot become one of dtype {dtype} without a copy")
        return array.copy() if copy and array is self._array else array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableArray) and (
            (self._hash, self.dtype, self.shape, self._bytes) == (other._hash, other.dtype, other.shape, other._bytes)
        )

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a HashableArray cannot change: {name} cannot be set")

    def __reduce__(self) -> tuple[Any, ...]:
        return HashableArray, (self._array,)

    def __repr__(self) -> str:
        return f"HashableArray({self._array!r})"
