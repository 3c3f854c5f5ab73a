"""Check pytrees and gradient transformations in your own test suite.

`check_pytree` and `check_transformation` raise one AssertionError that lists every broken law, with what was found,
what goes wrong because of it, and how to fix it.
"""

from treekit.testing._donation import check_donation as check_donation
from treekit.testing._pytree import check_pytree as check_pytree
from treekit.testing._transformation import check_transformation as check_transformation
