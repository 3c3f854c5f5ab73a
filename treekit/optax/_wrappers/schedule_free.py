"""`schedule_free_eval_params`: the params to evaluate with, from a state with `schedule_free` anywhere in it."""

from collections import OrderedDict
from typing import Any, TypeVar

import optax

from treekit._base.jax import jtu
from treekit._base.tree import children_of
from treekit._base.types import KeyPath, OptState
from treekit._names.key_path import path_text
from treekit.optax._kernel.known_states import known_of
from treekit.optax._wrappers.state_values import ancestors, replace_params, states_in

T = TypeVar("T")


def schedule_free_eval_params(state: OptState, params: T) -> T:
    """Return the params to evaluate with: `optax.contrib.schedule_free_eval_params` for raw models, preserving dtypes.

    Args:
        state: the state of an optimizer with `schedule_free`, `schedule_free_adamw` or `schedule_free_sgd` anywhere in
            it: in a chain, in `MultiSteps`, in groups of a `partition`.
        params: the params that are trained, or the raw model.

    Returns:
        A tree with the structure, shapes and dtypes of `params`. Only floating-point and complex arrays differ, in
        groups only those of `schedule_free`. Its arrays are its own, so a step may donate the params; of a `jax.Ref` it
        has the array.

    Raises:
        ValueError: the state has no `ScheduleFreeState`, or several for one leaf; another transformation follows it in
            its chain, or a wrapper around it changes its updates; or `params` have another structure or other shapes.

    Source: Defazio et al., The Road Less Scheduled, 2024.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> params = {"w": jnp.array([1.0, 2.0]), "name": "scale"}
    >>> state = optax.chain(optax.clip(1.0), optax.contrib.schedule_free_sgd(0.1)).init(params)
    >>> optax.contrib.schedule_free_eval_params(state, params)
    {'name': 'scale', 'w': Array([1., 2.], dtype=float32)}
    """
    states = states_in(state, optax.contrib.ScheduleFreeState)
    if not states:
        raise ValueError(
            "schedule_free_eval_params(state, params) requires a ScheduleFreeState as input, or a state that has one, "
            f"found {type(state).__name__} without one"
        )
    for path in states:
        for node, key in ancestors(state, path):
            if why := _why_params_differ(node, key):
                raise ValueError(
                    f"schedule_free is at {path_text(path)} of the state, {why}. The params then differ from those "
                    "that schedule_free computes. Put it outside, and last in its chain"
                )

    def evaluated(path: KeyPath, z: Any, param: Any) -> Any:
        """Return x, where the params that are trained are y = b1 x + (1 - b1) z."""
        (b1,) = jtu.tree_leaves(states[path].b1)  # in nnx it is inside a variable
        return (param - (1.0 - b1) * z) / b1

    return replace_params(params, {path: x.z for path, x in states.items()}, "states of schedule_free", evaluated)


def _why_params_differ(node: OptState, key: Any) -> str:
    """Say what changes the updates of the state with this key in a node of the whole state; "" if nothing does."""
    if known_of(node).changes_updates:
        return f"inside a transformation that changes its updates ({type(node).__name__})"
    if type(node) in (tuple, list, OrderedDict):  # a chain
        children = children_of(node)
        later = list(children.values())[list(children).index(key) + 1 :]
        if not all(known_of(x).returns_updates for x in later):
            return "and another transformation follows it in its chain and may change its updates"
    return ""
