"""The type of arrays that are stored in an optimizer's state as 8-bit codes: `graft` and others must know it."""

import dataclasses
from typing import Any, TypeGuard

import jax

from treekit._base.jax import jnp, jtu


@dataclasses.dataclass(frozen=True, eq=False)
class Codes:
    """An array of codes in an optimizer's state: a node, so that nothing takes its integers for the numbers.

    Arithmetic with it raises a TypeError. `training.decode_state` returns a state with the numbers.

    Attributes:
        codes: the codes, of int8 or uint8; the only leaf.
    """

    codes: Any  # anything may stand for the array, such as the spec of its sharding

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.codes.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The dtype in which the array is stored: int8 or uint8."""
        return self.codes.dtype

    @property
    def sharding(self) -> Any:
        """The sharding of the array."""
        return self.codes.sharding

    @property
    def bits(self) -> int:
        """How many bits store a number."""
        return int(jnp.iinfo(self.dtype).bits)


_CODES = jax.tree_util.GetAttrKey("codes")


def _flatten_with_keys(x: Codes) -> tuple[Any, None]:
    return ((_CODES, x.codes),), None


def _flatten(x: Codes) -> tuple[Any, None]:
    return (x.codes,), None


def _rebuild(_: None, children: tuple[Any]) -> Codes:
    return Codes(*children)


# Not by `treekit.node`, so that the kernel, which knows codes, needs nothing of nodes.
jtu.register_pytree_with_keys(Codes, _flatten_with_keys, _rebuild, _flatten)


def is_codes(x: object) -> TypeGuard[Codes]:
    """Whether `x` is an array of codes."""
    return isinstance(x, Codes)
