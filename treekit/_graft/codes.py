"""Codes of 8 bits in an optimizer's state: `graft` carries over the numbers that they stand for."""

from typing import Any

from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp
from treekit._codes import decode, encode, is_code_dtype
from treekit._graft.leaf import Leaf

_CODED = "EightBitState"  # of treekit.optax, which the core does not import
_PERHAPS = "rounding_count"  # a field of it, and of the state that has no codes


def with_codes(leaf: Leaf, source: Leaf, old: Any) -> Any:
    """Return an old value as the numbers or the codes that the new leaf has; None if it is unknown which of them it is.

    Args:
        leaf: the new leaf.
        source: the old leaf.
        old: the value of the old leaf.
    """
    has, needs = (_has_codes(x, x.value) for x in (source.origins[0], leaf))
    if "unknown" in (has, needs):
        is_cast = dtype_of(old) != dtype_of(leaf.value)
        return None if is_cast and any(map(_in_8_bits, (old, leaf.value))) else old
    if has == needs:
        return old
    if has == "yes":
        return decode(jnp.asarray(old)) if _in_8_bits(old) else old
    is_number = needs == "yes" and issubdtype(dtype_of(old), jnp.floating)
    return encode(jnp.asarray(old), dtype_of(leaf.value)) if is_number else None


def _has_codes(leaf: Leaf, value: Any) -> str:
    """Whether a leaf has codes: "yes" or "no"; "unknown" if it is in a dict that was a state."""
    state: Any = leaf.state
    while state is not None:
        kind: Any = state.kind  # the name of its class, or the names of its fields
        if kind == _CODED:
            return "yes" if _in_8_bits(value) else "no"
        if kind is not None and not isinstance(kind, str) and _PERHAPS in kind:
            return "unknown"
        state = state.parent
    return "no"


def _in_8_bits(value: Any) -> bool:
    return is_code_dtype(dtype_of(value))
