"""What Optax does not have, for optimizers of treekit and of plain Optax: averages, rates, hyperparameters, 8 bits.

`treekit.optax` has Optax's names. Those here are treekit's own, so none of them can become one of Optax with another
meaning. Each file can be removed without touching another, but for the codes of `_store`, which `_eight_bits` defines.
"""

from treekit.training._eight_bits import decode_state as decode_state
from treekit.training._eight_bits import encode_state as encode_state
from treekit.training._ema import get_ema as get_ema
from treekit.training._ema import params_ema as params_ema
from treekit.training._hyperparams import get_hyperparams as get_hyperparams
from treekit.training._hyperparams import set_hyperparams as set_hyperparams
from treekit.training._rates import scale_by_tree as scale_by_tree
from treekit.training._store import store_state as store_state
from treekit.training._summary import summary as summary
