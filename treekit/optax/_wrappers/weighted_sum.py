"""The mean, or the sum, of the gradients of a round, each with a weight.

A mean is updated, and gradients are not summed, as by Welford: mean + (gradient - mean) / divisor, where the divisor is
sum of the weights / weight. So no number is k times as large as a gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Array, Bool, Shaped

from treekit._base.dtype import promoted_dtype
from treekit._base.jax import jnp, lax, untyped
from treekit._base.types import HasDtype


def adding(
    weight: Any, weight_sum: Any, is_first: Any, accs: Sequence[HasDtype], *, mean: bool, may_lack_weight: bool
) -> Callable[[Any, Any], Any]:
    """Return a function that adds a gradient to its accumulator: it takes both, and returns the new accumulator.

    Args:
        weight: the weight of the gradients; a float of shape (), as the next one, of JAX or of NumPy.
        weight_sum: the sum of the weights in the round, this one included.
        is_first: whether that was 0 before; a bool of shape (). Then a gradient replaces what is in the accumulator.
        accs: the accumulators, of which only the dtypes count.
        mean: whether they have the mean of the gradients, or the sum.
        may_lack_weight: whether the weight may be 0. Then the gradient may be NaN, and a select leaves it out.
    """
    has_no_weight = weight == 0 if may_lack_weight else None
    add, operand_of = (_add_to_mean, _divisor) if mean else (_add_to_sum, _weight)
    operands = {acc.dtype: operand_of(weight, weight_sum, acc) for acc in accs}

    def add_gradient(grad: Any, acc: Any) -> Any:
        return add(has_no_weight, is_first, operands[acc.dtype], grad, acc)

    return add_gradient


def _divisor(weight: Any, weight_sum: Any, acc: HasDtype) -> Any:
    """Return what the difference to the mean is divided by, sum / weight, for an accumulator of this dtype."""
    wide = promoted_dtype(weight, acc)  # float16 cannot represent 100,000 tokens
    has_no_weight = weight == 0
    # Also where the result is not chosen, a derivative of 0 / 0 is NaN.
    ratio = weight_sum.astype(wide) / jnp.where(has_no_weight, 1, weight).astype(wide)
    return jnp.where(has_no_weight, 1, ratio).astype(acc.dtype)


def _weight(weight: Any, _: Any, acc: HasDtype) -> Any:
    """Return what a gradient is multiplied by in a sum, for an accumulator of this dtype."""
    return weight.astype(promoted_dtype(weight, acc))


# Both are traced once for each shape, and inlined, so that the program is that of the function itself.
@functools.partial(untyped.jit, inline=True)
def _add_to_mean(
    has_no_weight: Bool[Array, ""] | None,
    is_first: Bool[Array, ""],
    divisor: Shaped[Array, ""],
    grad: Shaped[Array, "*shape"],
    acc: Shaped[Array, "*shape"],
) -> Any:
    grad = grad.astype(acc.dtype)
    return _selected(has_no_weight, is_first, grad, acc + (grad - acc) / divisor, acc)


@functools.partial(untyped.jit, inline=True)
def _add_to_sum(
    has_no_weight: Bool[Array, ""] | None,
    is_first: Bool[Array, ""],
    weight: Shaped[Array, ""],
    grad: Shaped[Array, "*shape"],
    acc: Shaped[Array, "*shape"],
) -> Any:
    term = (weight * grad.astype(acc.dtype).astype(weight.dtype)).astype(acc.dtype)  # JAX does not mix float8 with f32
    return _selected(has_no_weight, is_first, term, acc + term, acc)


def _selected(has_no_weight: Bool[Array, ""] | None, is_first: Bool[Array, ""], first: Any, more: Any, acc: Any) -> Any:
    new = lax.select(is_first, first, more)  # not added to zero, so that -0.0 is preserved
    return new if has_no_weight is None else lax.select(has_no_weight, acc, new)
