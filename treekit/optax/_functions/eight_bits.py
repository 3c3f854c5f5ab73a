"""`decode_state` and `encode_state`: convert the codes of 8 bits in an optimizer's state to numbers and back."""

from typing import Any, TypeVar

from treekit._base.dtype import cast_like
from treekit._base.jax import jtu
from treekit._base.types import OptState
from treekit._codes import encode
from treekit._map import check_shapes
from treekit._tree_diff import tree_diff
from treekit.optax._wrappers.rounding_state import EightBitState, StochasticRoundingState, decoded

T = TypeVar("T")


def decode_state(state: OptState) -> Any:
    """Return a state with the numbers that its 8-bit codes stand for, in f32.

    `dtype_preserving(tx, state_dtype={"mu": jnp.int8, "nu": jnp.uint8}, rounding="stochastic")` stores moments in
    codes. The class of its state, `EightBitState`, says so; all other arrays are returned unchanged.

    Args:
        state: the state of an optimizer, or any tree that contains one.

    Returns:
        A tree of the same containers, with a `StochasticRoundingState` instead of each `EightBitState`. An
        optimizer without codes can use it.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> names = {"mu": jnp.int8, "nu": jnp.uint8}
    >>> optimizer = optax.dtype_preserving(optax.adam(0.1), state_dtype=names, rounding="stochastic")
    >>> params = jnp.ones((64, 64))
    >>> _, state = optimizer.update(params, optimizer.init(params), params)
    >>> state.inner_state[0].mu.dtype, optax.decode_state(state).inner_state[0].mu.dtype
    (dtype('int8'), dtype('float32'))
    """

    def numbers(x: Any) -> Any:
        return StochasticRoundingState(*decoded(x)) if _is_eight_bit(x) else x

    return jtu.tree_map(numbers, state, is_leaf=_is_eight_bit)


def encode_state(state: OptState, like: T) -> T:
    """Encode moments of a state in 8 bits: those for which the state `like` has codes. The inverse of `decode_state`.

    Use it to continue in 8 bits after a run in 16 or 32, or after you have changed the numbers that `decode_state`
    returned. The numbers are rounded to nearest.

    Args:
        state: a state of the structure of `like`, with floating-point arrays or codes instead of its codes.
        like: the state that the optimizer with 8-bit codes makes: `optimizer.init(params)`.

    Returns:
        The state with the structure and the dtypes of `like`.

    Raises:
        ValueError: the structures or the shapes differ; the message lists the differences.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = jnp.ones((64, 64))
    >>> wide = optax.dtype_preserving(optax.adam(0.1), rounding="stochastic")
    >>> names = {"mu": jnp.int8, "nu": jnp.uint8}
    >>> narrow = optax.dtype_preserving(optax.adam(0.1), state_dtype=names, rounding="stochastic")
    >>> _, state = wide.update(params, wide.init(params), params)
    >>> optax.encode_state(state, narrow.init(params)).inner_state[0].mu.dtype
    dtype('int8')
    """
    numbers, like_numbers = decode_state(state), decode_state(like)
    treedef = jtu.tree_structure(like)
    if jtu.tree_structure(numbers) != jtu.tree_structure(like_numbers):
        raise ValueError(
            "state and like differ in their structure. A state that was made without stochastic rounding belongs into "
            f"like._replace(inner_state=...).\nstate | like:\n{tree_diff(numbers, like_numbers, values=False)}"
        )
    check_shapes(like_numbers, numbers)

    def stored(like: Any, like_number: Any, x: Any) -> Any:
        return cast_like(x, like) if like is like_number else encode(x, like.dtype)

    out: T = treedef.unflatten(map(stored, *map(jtu.tree_leaves, (like, like_numbers, numbers))))
    return out


def _is_eight_bit(x: object) -> bool:
    return isinstance(x, EightBitState)
