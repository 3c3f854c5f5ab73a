"""What a node costs compared with its peers, and with the least (a tuple with names).

Run `python -m benchmarks.nodes` (QUICK=1 for a short look). Peers that are not installed are left out.
"""

import dataclasses
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks._timing import Ratio, Section, compare, show

# A layer has eight fields, two of them static; a group has five arrays and its children.
ARRAYS = ("weight", "bias", "scale", "shift", "mean", "var")
STATIC = {"name": "layer", "size": 64}
GROUP = (*ARRAYS[:5], "children")
GROUPS = 9  # of ten layers in a tree
X = jnp.zeros(())


class Kind(NamedTuple):
    """The two constructors of one library."""

    layer: Callable[[], Any]
    group: Callable[[Any], Any]

    def tree(self, groups: int) -> Any:
        """A group of groups of ten layers."""
        return self.group(tuple(self.group(tuple(self.layer() for _ in range(10))) for _ in range(groups)))


def kind_of(layer: Any, group: Any, *static: Any) -> Kind:
    return Kind(lambda: layer(X, X, X, X, X, X, *static), lambda children: group(X, X, X, X, X, children))


def kind(decorate: Callable[[Any], Any], static: Callable[[], Any] | None, base: type[Any] = object) -> Kind:
    """The kind that a library makes of classes: by decorating them, by a base class, or both.

    Args:
        decorate: the decorator.
        static: makes the value in the class body that makes a field static. None if a library has no such fields.
        base: the base class.
    """

    def make(name: str, fields: tuple[str, ...], values: dict[str, Any]) -> Any:
        def body(namespace: dict[str, Any]) -> None:
            annotations = dict.fromkeys([*fields, *values], Any)
            namespace.update(values, __module__=__name__, __annotations__=annotations)

        return decorate(types.new_class(name, (base,), exec_body=body))

    values = {name: static() for name in STATIC} if static else {}
    return kind_of(make("Layer", ARRAYS, values), make("Group", GROUP, {}), *(STATIC.values() if static else ()))


def frozen(cls: type[Any]) -> Any:
    return dataclasses.dataclass(frozen=True)(cls)


# By name, the module that has it, and what that makes.
LIBRARIES: dict[str, tuple[str, Callable[[Any], Kind]]] = {
    "treekit": ("treekit", lambda tk: kind(tk.node, lambda: tk.field(static=True))),
    "eqx.Module": ("equinox", lambda eqx: kind(lambda cls: cls, lambda: eqx.field(static=True), eqx.Module)),
    "register_dataclass": (
        "jax.tree_util",
        lambda jtu: kind(
            lambda cls: jtu.register_dataclass(frozen(cls)), lambda: dataclasses.field(metadata={"static": True})
        ),
    ),
    "flax.struct": ("flax.struct", lambda s: kind(s.dataclass, lambda: s.field(pytree_node=False))),
    # It has no static fields, so its layer has the six others; without mappable_dataclass, it takes them by position.
    "chex": ("chex", lambda chex: kind(lambda cls: chex.dataclass(cls, frozen=True, mappable_dataclass=False), None)),
    "jax_dataclasses": ("jax_dataclasses", lambda jdc: kind(jdc.pytree_dataclass, jdc.static_field)),
    "penzai": (
        "penzai.pz",
        lambda pz: kind(
            pz.pytree_dataclass, lambda: dataclasses.field(metadata={"pytree_node": False}), base=pz.Struct
        ),
    ),
}


def kinds() -> Iterator[tuple[str, Kind]]:
    """Those that are installed, and a tuple with names, which costs least."""
    for name, (module, make) in LIBRARIES.items():
        try:
            yield name, make(import_module(module))
        except ImportError:
            print(f"{name} is not installed, so left out")
    yield "NamedTuple", kind_of(namedtuple("Layer", ARRAYS), namedtuple("Group", GROUP))


def flatten(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree.flatten(tree)


def unflatten(tree: Any) -> Callable[[], object]:
    leaves, treedef = jax.tree.flatten(tree)
    return lambda: jax.tree.unflatten(treedef, leaves)


def tree_map(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree.map(lambda leaf: leaf, tree)


def with_path(tree: Any) -> Callable[[], object]:
    return lambda: jax.tree_util.tree_flatten_with_path(tree)


def jit_call(tree: Any) -> Callable[[], object]:
    last = jax.jit(lambda tree: jax.tree.leaves(tree)[-1] + 1)
    return lambda: last(tree).block_until_ready()


def sections() -> Iterator[Section]:
    each = dict(kinds())
    trees = {name: kind.tree(GROUPS) for name, kind in each.items()}
    table: dict[str, dict[str, Ratio]] = {}
    for operation in (flatten, unflatten, tree_map, with_path, jit_call):
        calls = {name: operation(tree) for name, tree in trees.items()}
        table[operation.__name__.replace("_", " ")] = compare(calls, ours="treekit")
    # What checks nothing, and is not a node.
    each["plain dataclass"] = kind(frozen, dataclasses.field)
    table["create a layer"] = compare({name: kind.layer for name, kind in each.items()}, ours="treekit")
    leaves = len(jax.tree.leaves(trees["treekit"]))
    text = (
        f"{1 + 11 * GROUPS} nodes with {leaves} leaves; and the creation of one, of eight fields, two of them static."
    )
    yield Section("Trees of nodes", text, table)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "jax", "equinox", "flax", "chex", "jax_dataclasses", "penzai")
