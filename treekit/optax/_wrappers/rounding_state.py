"""The states of `dtype_preserving(rounding="stochastic")`, whose arrays are widened to compute and rounded to store."""

from typing import Any, NamedTuple

import numpy as np

from treekit._base.dtype import dtype_of
from treekit._base.jax import jtu
from treekit._base.predicates import is_narrow
from treekit._base.types import PyTree
from treekit._codes import decode, encode, has_code_dtype
from treekit._map import dtype_preserving_tree_map
from treekit._round import RandomBits, bits_like, is_inexact_dtype, round_by, widen


class StochasticRoundingState(NamedTuple):
    """State that is rounded stochastically.

    Attributes:
        rounding_count: the number of updates so far, which determines the random bits; uint32, shape ().
        inner_state: the state of the inner transformation.
    """

    rounding_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
    inner_state: Any


class EightBitState(StochasticRoundingState):
    """State that is rounded stochastically, in which each array of int8 or uint8 contains codes of 8 bits.

    `treekit.optax.decode_state` returns the numbers that they stand for.
    """

    __slots__ = ()


def inner_numbers(state: StochasticRoundingState) -> Any:
    """Return the inner state with the numbers of its codes, and its narrow arrays in f32."""
    return widen(decoded(state.inner_state) if isinstance(state, EightBitState) else state.inner_state)


def decoded(tree: PyTree) -> Any:
    """Return a tree with numbers in place of codes."""

    def number(x: Any) -> Any:
        return decode(x) if has_code_dtype(x) else x

    return jtu.tree_map(number, tree)


def with_inner(
    state: StochasticRoundingState, updates: PyTree, likes: PyTree, inner_state: PyTree, random_bits: RandomBits
) -> tuple[Any, Any]:
    """Return updates and the state of the next step, rounded with different random bits for each array.

    Args:
        state: the state of this step, whose dtypes are preserved.
        updates: the new updates.
        likes: arrays, or what stands for them, of the dtypes of the updates.
        inner_state: the new inner state, in f32.
        random_bits: two words that are different in each step.
    """
    has_codes = isinstance(state, EightBitState)

    def to_round(old: Any, new: Any, random_bits: RandomBits) -> Any:
        if has_codes and has_code_dtype(old):  # which the likes of updates, shapes without values, do not have
            return encode(new, old.dtype, random_bits)
        is_float = is_narrow(old) and is_inexact_dtype(dtype_of(new), np.floating)
        return round_by(random_bits, new, old.dtype) if is_float else new

    like = (likes, state.inner_state)
    out: Any = dtype_preserving_tree_map(to_round, like, (updates, inner_state), bits_like(like, random_bits))
    new_updates, new_state = out
    return new_updates, type(state)(state.rounding_count + 1, new_state)


def check_kind(state: object, kind: type[StochasticRoundingState]) -> None:
    """Raise a TypeError unless a state has this class, which says whether its arrays of 8 bits are codes."""
    if not isinstance(state, StochasticRoundingState):
        raise TypeError(
            f"rounding='stochastic' needs the {kind.__name__} that its init makes, found a {type(state).__name__}. Put "
            "one that was made without it into init(params)._replace(inner_state=...)"
            + (", and convert it with optax.encode_state" if kind is EightBitState else "")
        )
    if isinstance(state, EightBitState) and kind is StochasticRoundingState:
        raise TypeError(
            "this state has moments in codes of 8 bits, and the state_dtype of this transformation has none. Use the "
            "same state_dtype, or convert the state with optax.decode_state"
        )
    if not isinstance(state, kind):
        raise TypeError(
            "state_dtype asks for codes of 8 bits, and this state was made without them. Convert it with "
            "optax.encode_state(state, optimizer.init(params)), or make it again with init"
        )
