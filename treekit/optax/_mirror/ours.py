"""Treekit's own functions and classes under names of Optax."""

from typing import Any

import optax

from treekit.optax._wrappers.apply import apply_updates
from treekit.optax._wrappers.conditional import apply_if_finite, conditionally_mask, conditionally_transform
from treekit.optax._wrappers.inject import inject_hyperparams
from treekit.optax._wrappers.lbfgs import lbfgs, value_and_grad_from_state
from treekit.optax._wrappers.lookahead import lookahead
from treekit.optax._wrappers.map_params import tree_map_params
from treekit.optax._wrappers.monitor import monitor
from treekit.optax._wrappers.multi_steps import MultiSteps
from treekit.optax._wrappers.releases import existing
from treekit.optax._wrappers.schedule_free import schedule_free_eval_params
from treekit.optax._wrappers.select import freeze, masked, partition, selective_transform, set_to_zero
from treekit.optax._wrappers.tree_set import tree_set
from treekit.optax._wrappers.update import incremental_update, periodic_update

# Under the names that they have in Optax.
_OF_THE_SAME_NAME = (
    MultiSteps,
    apply_if_finite,
    apply_updates,
    conditionally_mask,
    conditionally_transform,
    freeze,
    incremental_update,
    inject_hyperparams,
    lbfgs,
    lookahead,
    masked,
    monitor,
    partition,
    periodic_update,
    selective_transform,
    set_to_zero,
    tree_map_params,
    value_and_grad_from_state,
)

# Wherever Optax has the key, under any name and in any module, treekit has the value.
OURS: dict[Any, Any] = {
    optax.inject_stateful_hyperparams: inject_hyperparams,
    optax.tree.set: tree_set,
    optax.contrib.schedule_free_eval_params: schedule_free_eval_params,
}
# What a release does not have is not there: in Optax 0.2.5, freeze is in `optax.transforms` only, and monitor nowhere.
for ours in _OF_THE_SAME_NAME:
    for module in (optax, optax.transforms):
        OURS.update(dict.fromkeys(existing(module, ours.__name__), ours))
# Optax passes a measurement as the "updates" of `measure_with_ema`: it does not cross the boundary.
OURS.update({theirs: theirs for theirs in existing(optax, "measure_with_ema")})
