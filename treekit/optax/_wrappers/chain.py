"""A transformation among the arguments of one of Optax's own functions, such as a link of a chain, becomes its core."""

from typing import Any

import optax

from treekit._base.types import OptState, Params, Updates
from treekit.optax._kernel.preserve import keep_updates
from treekit.optax._kernel.transformation import Core, core_of, own_core


def link(x: Any, role: str, where: str) -> Any:
    """Return an argument for one of Optax's own functions: for a transformation, such as a link of a chain, its core.

    The updates of treekit's own keep their dtypes here too: the next link may not accept those of an injected rate,
    which is f32 at least.
    """
    if role == "named":
        return x[0], link(x[1], "transformation", where)
    if role != "transformation" and not isinstance(x, (optax.GradientTransformation, optax.MultiSteps)):
        return x
    core = core_of(x, where)
    if own_core(x) is None:
        return core
    inner_update = core.update

    def update(updates: Updates, state: OptState, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        news, state = inner_update(updates, state, params, **extra)
        return keep_updates(updates, params, news), state

    return Core(core.init, update)
