"""What Optax does not have: whole steps, averages of params, rates, hyperparameters, and state in other dtypes.

For optimizers of treekit and of plain Optax. `treekit.optax` has Optax's names; those here are treekit's own, so none
of them can become one of Optax with another meaning. Each feature can be removed without touching another. Three have
several files: `_store` stores a state as `_rules` say; `_groups` makes an optimizer of a `_groups_table`, which
`_groups_core` runs for each group of parameters, and notes in `_row_names` which rows decide; `_summary` reads these,
asks `_effects` and `_frozen`, which take steps by `_round`, and `_hyperparams`, and puts their answers into a
`_summary_table`.
"""

import typing as _typing

from treekit._arrays.round import stochastic_round as stochastic_round
from treekit.optax._kernel.misfit import StateError as StateError
from treekit.optax._wrappers.rounds import WeightedMultiStepsState as WeightedMultiStepsState
from treekit.training._ema import get_params_ema as get_params_ema
from treekit.training._ema import params_ema as params_ema
from treekit.training._groups import param_groups as param_groups
from treekit.training._groups_table import times as times
from treekit.training._hyperparams import get_hyperparams as get_hyperparams
from treekit.training._hyperparams import set_hyperparams as set_hyperparams
from treekit.training._in_nnx import in_nnx as in_nnx
from treekit.training._rates import scale_by_tree as scale_by_tree
from treekit.training._step import apply_gradients as apply_gradients
from treekit.training._store import StochasticRoundingState as StochasticRoundingState
from treekit.training._store import store_state as store_state
from treekit.training._summary import summary as summary

if not _typing.TYPE_CHECKING:  # to type checkers, a name that is not here is an error
    from treekit._missing import getattr_of as _getattr_of

    __getattr__ = _getattr_of(__name__)
