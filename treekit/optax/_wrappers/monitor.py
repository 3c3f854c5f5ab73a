"""`monitor`: store measurements of the updates in the state."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from treekit._base.tree import is_mapping
from treekit._base.types import Params, Updates
from treekit._text.describe import count, describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.holes import is_params_placeholder
from treekit.optax._kernel.transformation import Core, GradientTransformation
from treekit.optax._wrappers.releases import MonitorState

Measures = Mapping[str, Callable[[Any], Any] | Callable[[Any, Any], Any] | optax.GradientTransformationExtraArgs]


def monitor(measures: Measures) -> GradientTransformation[MonitorState]:
    """Store measurements of the updates in the state: `optax.monitor`, which also runs in scan and is traced once.

    The state has the measurements from `init` on. Before the first update they are measurements of the params.

    Args:
        measures: maps names to functions of the updates whose results are stored, or to `optax.measure_with_ema(...)`.
            A function that requires two positional arguments receives the updates and the params.

    Returns:
        A transformation that does not change the updates; its state is an `optax.MonitorState`.

    Raises:
        TypeError: `measures` is not a dict; or a measure takes no argument, or requires more than two.
        ValueError: raised by `update` without the params, if a measure needs them.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> def ratio(updates, params):
    ...     return jax.tree.map(lambda u, p: jnp.linalg.norm(u) / jnp.linalg.norm(p), updates, params)
    >>> tx = optax.chain(optax.sgd(0.5), monitor({"norm": optax.tree.norm, "ratio": ratio}))
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> _, state = tx.update(params, tx.init(params), params)
    >>> optax.tree.get(state, "norm"), optax.tree.get(state, "ratio")
    (Array(2.5, dtype=float32), {'w': Array(0.5, dtype=float32)})
    """
    if not is_mapping(measures):
        raise TypeError(
            f"measures must be a dict by name, found {describe_value(measures)}: monitor({{'norm': optax.tree.norm}})"
        )
    tx = optax.monitor({name: _as_in_optax(name, measure) for name, measure in measures.items()})

    def init(params: Params) -> MonitorState:
        state: MonitorState = tx.init(params)
        if is_params_placeholder(params):  # for tree_map_params, which needs the names only
            return state._replace(measurements=dict.fromkeys(measures, 0.0))
        measured: MonitorState = tx.update(params, state, params)[1]
        return measured._replace(measure_states=state.measure_states)  # an average must not count the params

    return at_boundary(Core(init, tx.update))


def _as_in_optax(name: str, measure: Any) -> Any:
    """Return a measure of Optax: a function that requires two positional arguments becomes a transformation.

    `optax.tree.norm` requires one.
    """
    if hasattr(measure, "update"):
        return measure
    wanted = (
        f"the measure {name!r} must be a function of the updates, or of the updates and the params; found "
        f"{describe_value(measure)}"
    )
    if not callable(measure):
        raise TypeError(wanted)
    try:
        parameters = inspect.signature(measure).parameters.values()
    except ValueError:  # some functions of C have no signature
        return measure
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(x.kind in positional and x.default is inspect.Parameter.empty for x in parameters)
    if required > 2 or not len(parameters):
        raise TypeError(f"{wanted}, which takes {count(required, 'argument')}")
    if required != 2:
        return measure

    def measured(updates: Updates, params: Params) -> Any:
        if params is None:
            raise ValueError(
                f"the measure {name!r} takes the params, so update needs them: update(updates, state, params)"
            )
        return measure(updates, params)

    return optax.stateless(measured)
