"""The whole step of a chain: the whole step of its last link, with the updates of the links before it."""

from collections.abc import Callable
from typing import Any

import optax

from treekit._base.types import OptState, Params, Updates
from treekit.optax._kernel.boundary import normalize, whole_step
from treekit.optax._kernel.transformation import Apply, Core, SteppingCore, core_of, own_step


def with_last_step(make: Callable[..., Core], chain: Core, args: tuple[Any, ...], links: tuple[Any, ...]) -> Core:
    """Return a chain that has a whole step of its own if its last link has one.

    Only the last link may skip the params, since a link after it, such as weight decay, changes them on every step.

    Args:
        make: `optax.chain` or `optax.named_chain`.
        chain: the chain that it made.
        args: the arguments that it was called with.
        links: these arguments as Optax sees them.
    """
    *name, last = args[-1] if make is optax.named_chain else args[-1:]
    tx = normalize(last)
    if own_step(core_of(tx)) is None:
        return chain

    def step(updates: Updates, state: OptState, params: Params, extra: dict[str, Any], apply: Apply) -> tuple[Any, Any]:
        def last_step(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
            return whole_step(tx, updates, state, params, extra, apply)

        link = optax.GradientTransformationExtraArgs(tx.init, last_step)
        stepping = make(*links[:-1], (*name, link) if name else link)
        return stepping.update(updates, state, params, **extra)  # the last link returns new params as its updates

    return SteppingCore(chain.init, chain.update, step)
