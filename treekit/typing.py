"""Names for signatures: what treekit's arguments are, for type checkers and at run time."""

from treekit._check_types import Typed as Typed
