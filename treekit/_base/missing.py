"""What Python calls for a name that `treekit` does not have.

In a file of its own, so that `sys` is not a name of `treekit`.
"""

import sys
from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    """Raise an AttributeError, which says so if the name is one of `treekit.optax`, once that is imported."""
    optax, treekit = sys.modules.get("treekit.optax"), sys.modules["treekit"]
    is_there = not name.startswith("_") and optax is not None and hasattr(optax, name)
    hint = f". It is in the other module: treekit.optax.{name}" if is_there else ""
    raise AttributeError(f"module 'treekit' has no attribute {name!r}{hint}", name=name, obj=treekit)
