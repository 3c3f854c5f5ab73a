"""The whole step of a chain: that of its last link, on the updates of the links before it."""

from collections.abc import Callable
from typing import Any

import optax

from treekit.optax._boundary import normalize, whole_step
from treekit.optax._dtypes import preserve_step_dtypes
from treekit.optax._transformation import Apply, Core, SteppingCore, core_of, own_step


def with_last_step(
    chain: optax.GradientTransformation, last: optax.GradientTransformation, relink: Callable[[Core], Core]
) -> optax.GradientTransformation:
    """A chain that can do a whole step of its own if its last link can.

    Only the last link may skip the params: a link after it, such as weight decay, changes them on every step.

    Args:
        chain: a chain.
        last: its last link.
        relink: makes the same chain with another last link.
    """
    tx = normalize(last)
    if own_step(core_of(tx)) is None:
        return chain

    def step(updates: Any, state: Any, params: Any, extra: dict[str, Any], apply: Apply) -> tuple[Any, Any]:
        def last_step(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            return whole_step(tx, updates, state, params, extra, apply)

        chain = relink(optax.GradientTransformationExtraArgs(tx.init, last_step))
        return chain.update(updates, state, params, **extra)  # what the last link returns: the new params

    return SteppingCore(chain.init, chain.update, preserve_step_dtypes(step))
