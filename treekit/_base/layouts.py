"""What `treekit.node` writes into a class and its fields, for files that read it and need no node themselves."""

from typing import Any

LAYOUT = "__treekit_layout__"  # the attribute of a class
TRAINABLE = "trainable"  # the key in a field's metadata


def layout_of(cls: type[Any]) -> Any:
    """Return the `Layout` of a class; None if it was not registered, or only its base was."""
    return vars(cls).get(LAYOUT)
