"""`monitor`: store measurements of the updates in the state."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import optax

from treekit._base.describe import describe_value
from treekit._base.types import Params
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.state_map import is_params_placeholder
from treekit.optax._kernel.transformation import GradientTransformation, described

if TYPE_CHECKING:
    Measure = Callable[[Any], Any] | optax.GradientTransformationExtraArgs
else:
    Measure = Any  # so that our own error, which names the measure, comes before that of a run-time checker


@described
def monitor(measures: Mapping[str, Measure]) -> GradientTransformation[optax.MonitorState]:
    """Store measurements of the updates in the state: `optax.monitor`, which also runs in scan and is traced once.

    The state has the measurements from `init` on. Before the first update they are measurements of the params.

    Args:
        measures: maps names to functions of the updates whose results are stored, or to `optax.measure_with_ema(...)`.

    Returns:
        A transformation that does not change the updates; its state is an `optax.MonitorState`.

    Raises:
        TypeError: a measure is neither of these; the message names it.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> tx = optax.chain(monitor({"norm": optax.tree.norm}), optax.sgd(0.1))
    >>> _, state = tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))
    >>> optax.tree.get(state, "norm")
    Array(5., dtype=float32)
    """
    for name, measure in measures.items():
        if not (callable(measure) or hasattr(measure, "update")):
            raise TypeError(
                f"the measure {name!r} must be a function of the updates, or optax.measure_with_ema(...); found "
                f"{describe_value(measure)}"
            )
    tx = optax.monitor(dict(measures))

    def init(params: Params) -> optax.MonitorState:
        state: optax.MonitorState = tx.init(params)
        if is_params_placeholder(params):  # for tree_map_params, which needs the names only
            return state._replace(measurements=dict.fromkeys(measures, 0.0))
        measured: optax.MonitorState = tx.update(params, state, params)[1]
        return measured._replace(measure_states=state.measure_states)

    return at_boundary(optax.GradientTransformationExtraArgs(init, tx.update))
