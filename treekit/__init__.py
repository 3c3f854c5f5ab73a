"""Typed tools for JAX pytrees: make classes that are nodes; filter, map, edit and compare trees.

`treekit.optax` is Optax for any pytree, `treekit.training` has what Optax does not have, and `treekit.testing` checks
classes and optimizers.
"""

import typing as _typing

from treekit._arrays.map import dtype_preserving_tree_map as dtype_preserving_tree_map
from treekit._arrays.scan import filter_scan as filter_scan
from treekit._arrays.stack import tree_ravel as tree_ravel
from treekit._arrays.stack import tree_stack as tree_stack
from treekit._arrays.stack import tree_unstack as tree_unstack
from treekit._base.predicates import is_array as is_array
from treekit._base.predicates import is_inexact_array as is_inexact_array
from treekit._base.predicates import is_truly_callable as is_truly_callable
from treekit._compare.diff import tree_diff as tree_diff
from treekit._graft.graft import graft as graft
from treekit._graft.state_dict import to_state_dict as to_state_dict
from treekit._node.decorator import field as field
from treekit._node.decorator import node as node
from treekit._node.factory import node_factory as node_factory
from treekit._node.hashable_array import HashableArray as HashableArray
from treekit._node.register import register_node as register_node
from treekit._node.replace import replace as replace
from treekit._select.at import tree_at as tree_at
from treekit._select.filter import combine as combine
from treekit._select.filter import filter as filter
from treekit._select.filter import filter_arrays as filter_arrays
from treekit._select.filter import partition as partition
from treekit._select.find import tree_find as tree_find
from treekit._select.masks import leaf_mask as leaf_mask
from treekit._select.paths import path_labels as path_labels
from treekit._select.paths import path_mask as path_mask
from treekit._select.spec import resolve_spec as resolve_spec
from treekit._select.trainable import trainable as trainable
from treekit._show.summary import tree_summary as tree_summary
from treekit._types.fields import check_types as check_types

__version__ = "1.0.0rc1"  # the one place of it: hatchling reads this line

if not _typing.TYPE_CHECKING:  # to type checkers, a name that is not here is an error
    from treekit._missing import getattr_of as _getattr_of

    __getattr__ = _getattr_of(__name__)

    # Without modules: after `from treekit import *`, the name `optax` must still be the user's.
    __all__ = [name for name, x in [*globals().items()] if name[0] != "_" and not isinstance(x, type(_typing))]
