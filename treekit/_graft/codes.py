"""Codes of 8 bits in an optimizer's state: `graft` carries over the numbers that they stand for."""

from typing import Any, NamedTuple

import jax

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, untyped
from treekit._codes import decode, encode, is_code_dtype
from treekit._graft.leaf import Leaf, Value


class Codes(NamedTuple):
    """Which of an old leaf and a new one have codes.

    Attributes:
        old: whether the old leaf has codes; None if that is unknown, since a dict has lost the class of its state.
        new: whether the new leaf has; or None.
        are_same: whether both have codes of one dtype.
    """

    old: bool | None
    new: bool | None
    are_same: bool

    def numbers(self, x: Value) -> Any:
        """Return the numbers of an array of the old leaf."""
        return decode(jnp.asarray(x)) if self.old and _in_8_bits(x) else x

    def new_numbers(self, x: Value) -> Any:
        """Return the numbers of the new leaf."""
        if not self.new:
            return x
        return untyped.eval_shape(decode, x) if isinstance(x, jax.ShapeDtypeStruct) else decode(jnp.asarray(x))

    def encoded(self, x: object, dtype: object) -> Any:
        """Return numbers as the new leaf has them; None if they cannot have codes."""
        if not self.new:
            return x
        return encode(jnp.asarray(x), dtype) if issubdtype(dtype_of(x), jnp.floating) else None


def codes_of(leaf: Leaf, source: Leaf) -> Codes | None:
    """Return which of a new leaf and its source have codes; None if what is unknown decides about the values."""
    old = next((x for x in source.origins if _in_8_bits(x.value)), source.origins[0])
    has, needs = (x.state.has_codes if _in_8_bits(x.value) else False for x in (old, leaf))
    is_same = dtype_of(old.value) == dtype_of(leaf.value)
    if None in (has, needs):
        # Of one dtype, both have codes if one has, and it does not matter if that is unknown for both.
        has = needs = bool(has or needs)
        return Codes(has, needs, has) if is_same else None
    return Codes(has, needs, bool(has and needs and is_same))


def _in_8_bits(x: object) -> bool:
    return is_code_dtype(dtype_of(x))
