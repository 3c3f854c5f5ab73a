"""Classes that prepare their values: what `__init__` did is neither lost nor done again where JAX rebuilds them."""

from typing import Any

import equinox as eqx
import jax
import pytest

import treekit as tk


class Doubles:
    """As people write it: `__init__` changes what it is given."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0) -> None:
        self.table = {**table, "a": 42}
        self.scale = 2 * scale


class Flagged(Doubles):
    """The workaround with a flag that says "rebuilt"."""

    def __init__(self, table: dict[str, Any], scale: Any = 1.0, rebuilt: bool = False) -> None:
        self.table, self.scale = table, scale
        if not rebuilt:
            super().__init__(table, scale)


class Registered(Doubles):
    """With a static value besides, as another workaround has it."""

    fixed = 42


@tk.node
class Node:
    table: dict[str, Any]
    scale: Any = 1.0

    def __post_init__(self) -> None:
        self.table["a"] = 42
        self.scale = 2 * self.scale


register: Any = jax.tree_util.register_pytree_node
register(Flagged, lambda x: ((x.table, x.scale), None), lambda _, children: Flagged(children[0], children[1], True))
tk.register_node(Registered, ["table", "scale"], ["fixed"])


EDITS = [(make, tree_at) for make in (Registered, Node) for tree_at in (tk.tree_at, eqx.tree_at)]


@pytest.mark.parametrize("make, tree_at", [*EDITS, (Flagged, tk.tree_at)])
def test_an_edit_changes_only_what_it_names(make: Any, tree_at: Any) -> None:
    given = {"a": 0, "b": 1}
    made = make(given)
    edited = tree_at(lambda x: (x.table["a"], x.table["b"]), made, (8, None))
    assert (type(edited), edited.table, edited.scale) == (make, {"a": 8, "b": None}, 2.0)
    assert (made.table, made.scale, given) == ({"a": 42, "b": 1}, 2.0, {"a": 0, "b": 1})
