"""What Optax does not have: whole steps, averages of params, rates, hyperparameters, and state in other dtypes.

For optimizers of treekit and of plain Optax. `treekit.optax` has Optax's names; those here are treekit's own, so none
of them can become one of Optax with another meaning. Each feature can be removed without touching another:

- `_step`: take a whole step. `_in_nnx`: let `nnx.Optimizer` take it.
- `_ema`: average the params.
- `_rates`: give each leaf its own rate.
- `_hyperparams`: read and set hyperparameters in a state.
- `_store`: store a state in other dtypes; `_rules`: in which dtype is each array stored?
- `_groups`: make an optimizer of a table. `_groups_leafwise`: which factories can run for groups? `_groups_table`: what
  does each row select and set? `_groups_of_leaves`: which rows decide about a leaf? `_groups_core`: how does each group
  take its step? `_row_names` tells a summary which rows decide.
- `_summary`: show what an optimizer does. `_effects`: what does a step do to each leaf? `_frozen`: which leaves does no
  step move? `_round`: how is a step taken? `_summary_table`: how is it printed?
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
