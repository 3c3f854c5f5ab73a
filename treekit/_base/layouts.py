"""What `treekit._node` stores in a class that it registers."""

from typing import Any

LAYOUT = "__treekit_layout__"  # the attribute of a class


def layout_of(cls: type[Any]) -> Any:
    """Return the `Layout` of a class; None if it was not registered, or only its base was."""
    return vars(cls).get(LAYOUT)
