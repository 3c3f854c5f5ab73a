"""Old names, until all modules use the new ones."""

from treekit.optax._boundary import at_boundary as select_leaves
from treekit.optax._boundary import normalize as hold
from treekit.optax._masking import filtered as filtered
from treekit.optax._selection import is_params_placeholder as is_params_placeholder
from treekit.optax._selection import is_spec_leaf as is_spec_leaf

__all__ = ["filtered", "hold", "is_params_placeholder", "is_spec_leaf", "select_leaves"]
