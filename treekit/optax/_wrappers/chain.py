"""A link of a chain, or another transformation that one of Optax's own factories runs inside: its core."""

from typing import Any

from treekit._base.types import OptState, Params, Updates
from treekit.optax._kernel.preserve import keep_updates
from treekit.optax._kernel.transformation import Core, core_of, own_core


def link(tx: object, where: str) -> Core:
    """Return the core of a transformation.

    The updates of treekit's own keep their dtypes here too: the next link may not accept those of an injected rate,
    which is f32 at least.

    Args:
        tx: a transformation.
        where: the argument that it is, for the error.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    core = core_of(tx, where)
    if own_core(tx) is None:
        return core
    inner_update = core.update

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        news, state = inner_update(updates, state, params, **extra)
        return keep_updates(updates, params, news), state

    return Core(core.init, update)
