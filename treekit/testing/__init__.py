"""Check pytrees and gradient transformations in your own test suite.

`check_pytree` and `check_transformation` raise one AssertionError that lists every broken law, with what was found,
what goes wrong because of it, and how to fix it. `assert_trees_same` raises one that lists all differences between two
trees, and `tree_shared` finds the arrays that a tree has twice.
"""

import typing as _typing

from treekit._compare.diff import assert_trees_same as assert_trees_same
from treekit._show.shared import tree_shared as tree_shared
from treekit.testing._donation import check_donation as check_donation
from treekit.testing._pytree import check_pytree as check_pytree
from treekit.testing._transformation import check_transformation as check_transformation

if not _typing.TYPE_CHECKING:  # to type checkers, a name that is not here is an error
    from treekit._missing import getattr_of as _getattr_of

    __getattr__ = _getattr_of(__name__)
