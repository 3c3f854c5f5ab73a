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
from jaxtyping import Float

import treekit as tk
from benchmarks._page import Chart, Section, show
from benchmarks._timing import QUICK, Ratio, compare, measure

# A layer has eight fields, two of them static; a group has five arrays and its children.
ARRAYS = ("weight", "bias", "scale", "shift", "mean", "var")
STATIC = ("name", "size")
GROUP = (*ARRAYS[:5], "children")
SIZES = (1, 9) if QUICK else (1, 9, 90)  # groups of ten layers in a tree
SHOWN = 9  # groups of the tree in the table: 100 nodes, 590 leaves
STEPS = (100,) if QUICK else (1_000, 5_000)
X = jnp.zeros(())


class Library(NamedTuple):
    """How a library makes a class a node: by decorating it, by a base class, or both."""

    package: str
    decorate: Callable[[type[Any]], Any]
    static: Callable[[], Any] | None  # the value in the class body that makes a field static
    base: type[Any] = object

    def kind(self) -> "Kind":
        layer = self.make("Layer", ARRAYS, {name: self.static() for name in STATIC} if self.static else {})
        return kind(layer, self.make("Group", GROUP, {}), *(("layer", 64) if self.static else ()))

    def make(self, name: str, data: tuple[str, ...], static: dict[str, Any]) -> Any:
        def body(namespace: dict[str, Any]) -> None:
            namespace["__module__"] = __name__
            namespace["__annotations__"] = dict.fromkeys([*data, *static], Any)
            namespace.update(static)

        return self.decorate(types.new_class(name, (self.base,), exec_body=body))


def treekit() -> Library:
    return Library("treekit", tk.node, lambda: tk.field(static=True))


def equinox() -> Library:
    eqx: Any = import_module("equinox")
    return Library("equinox", lambda cls: cls, lambda: eqx.field(static=True), eqx.Module)


def jax_dataclass() -> Library:
    def decorate(cls: type[Any]) -> Any:
        register: Any = jax.tree_util.register_dataclass
        return register(dataclasses.dataclass(frozen=True)(cls))

    return Library("jax", decorate, lambda: dataclasses.field(metadata={"static": True}))


def flax() -> Library:
    struct: Any = import_module("flax.struct")
    return Library("flax", struct.dataclass, lambda: struct.field(pytree_node=False))


def chex() -> Library:
    """It has no static fields, so its layer has the six others."""
    make: Any = import_module("chex").dataclass
    # Without mappable_dataclass, it takes positional arguments as the others do.
    return Library("chex", lambda cls: make(cls, frozen=True, mappable_dataclass=False), None)


def jax_dataclasses() -> Library:
    jdc: Any = import_module("jax_dataclasses")
    return Library("jax_dataclasses", jdc.pytree_dataclass, jdc.static_field)


def penzai() -> Library:
    pz: Any = import_module("penzai.pz")
    static = {"pytree_node": False}
    return Library("penzai", pz.pytree_dataclass, lambda: dataclasses.field(metadata=static), pz.Struct)


LIBRARIES: dict[str, Callable[[], Library]] = {
    "treekit": treekit,
    "eqx.Module": equinox,
    "register_dataclass": jax_dataclass,
    "flax.struct": flax,
    "chex": chex,
    "jax_dataclasses": jax_dataclasses,
    "penzai": penzai,
}


def installed() -> Iterator[tuple[str, Library]]:
    for name, library in LIBRARIES.items():
        try:
            yield name, library()
        except ImportError:
            print(f"{name} is not installed, so left out")


class Kind(NamedTuple):
    """The two constructors of one library."""

    layer: Callable[[], Any]
    group: Callable[[Any], Any]

    def tree(self, groups: int) -> Any:
        """A group of groups of ten layers."""
        return self.group(tuple(self.group(tuple(self.layer() for _ in range(10))) for _ in range(groups)))


def kind(layer: Any, group: Any, *static: Any) -> Kind:
    return Kind(lambda: layer(X, X, X, X, X, X, *static), lambda children: group(X, X, X, X, X, children))


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


def read(tree: Any) -> Callable[[], object]:
    """Four fields of one node, a hundred times."""

    def call() -> None:
        for _ in range(100):
            _ = tree.weight, tree.mean, tree.children, tree.bias

    return call


def donated_step(model: Any) -> Callable[[], object]:
    """(model, state) to the same, all of it donated. It only gives one for the other, so that dispatch is timed."""
    step: Any = jax.jit(lambda model, state: (state, model), donate_argnums=(0, 1))
    trees = jax.tree.map(jnp.array, (model, model))

    def call() -> None:
        nonlocal trees
        trees = step(*trees)

    return call


def as_dicts(x: Any) -> Any:
    """The same leaves in dicts."""
    if dataclasses.is_dataclass(x):
        return {f.name: as_dicts(getattr(x, f.name)) for f in dataclasses.fields(x) if not f.metadata.get("static")}
    return tuple(map(as_dicts, x)) if isinstance(x, tuple) else x


def checked() -> Section:
    """What it costs to compare the fields of nodes with their annotations."""

    def linear(decorate: Callable[[type[Any]], Any]) -> Callable[[], Any]:
        class Linear:
            weight: Float[jax.Array, "dout din"]
            bias: Float[jax.Array, "dout"] | None
            size: int = tk.field(static=True)

        cls = decorate(Linear)
        return lambda: cls(weight, bias, 3)

    weight, bias = jnp.zeros((5, 3)), jnp.zeros(5)
    jaxtyped: Any = import_module("jaxtyping").jaxtyped(typechecker=import_module("beartype").beartype)
    ways = {
        "treekit": linear(tk.node),
        "node(check=True)": linear(tk.node(check=True)),
        "jaxtyped, beartype": linear(lambda cls: jaxtyped(tk.node(cls))),
    }
    created = compare(ways, base="treekit")
    tree = [ways["treekit"]() for _ in range(1_000)]
    calls = {"treekit": lambda: [ways["treekit"]() for _ in tree], "check_types": lambda: tk.check_types(tree)}
    table = {
        "create": {name: ratio for name, ratio in created.items() if name != "treekit"},
        "1,000 nodes": {"check_types": compare(calls, base="treekit")["check_types"]},
    }
    text = "A node of two arrays and a number: its creation, and a check of 1,000, against creating as many unchecked."
    return Section("Checked annotations", text, table)


Trees = dict[str, Callable[[int], Any]]  # by library, from the number of groups to a tree


def columns(trees: dict[str, Any], *operations: Callable[[Any], Callable[[], object]]) -> dict[str, dict[str, Ratio]]:
    """Each operation's ratios to treekit's time."""
    return {
        operation.__name__: compare({name: operation(tree) for name, tree in trees.items()}, base="treekit")
        for operation in operations
    }


def whole_trees(trees: Trees) -> Section:
    """The operations on trees of several sizes; one of these in the table, all in the chart."""
    table: dict[str, dict[str, object]] = {}
    panels: dict[str, dict[str, dict[int, float]]] = {}
    built = {(name, groups): tree(groups) for groups in SIZES for name, tree in trees.items()}
    leaves = {groups: len(jax.tree.leaves(built["treekit", groups])) for groups in SIZES}
    for operation in (flatten, unflatten, tree_map, with_path, jit_call):
        title = operation.__name__.replace("_", " ")
        times = measure({each: operation(tree) for each, tree in built.items()})
        table[title] = {name: times.ratio((name, SHOWN), ("treekit", SHOWN)) for name in trees if name != "treekit"}
        panels[title] = {name: {leaves[n]: 1e6 * times.median((name, n)) for n in SIZES} for name in trees}
    text = f"The table is for {1 + 11 * SHOWN} nodes with {leaves[SHOWN]} leaves; the chart shows other sizes too."
    return Section("Trees of nodes", text, table, Chart("leaves", "µs", panels))


def sections() -> Iterator[Section]:
    kinds = {name: library.kind() for name, library in installed()}
    # What costs least: a tuple with names, and for reading and creating a dataclass that is not a node.
    limit = kind(namedtuple("Layer", ARRAYS), namedtuple("Group", GROUP))
    plain = Library("", dataclasses.dataclass(frozen=True), dataclasses.field).kind()
    peers = {**kinds, "NamedTuple": limit}
    yield whole_trees({name: each.tree for name, each in peers.items()})

    found = columns({name: each.layer() for name, each in peers.items()}, flatten, unflatten, tree_map)
    creation = {name: each.layer for name, each in {**peers, "plain dataclass": plain}.items()}
    found["create"] = compare(creation, base="treekit")
    others = {title: {name: x for name, x in column.items() if name != "treekit"} for title, column in found.items()}
    yield Section("One node", "A node with eight fields, two of them static.", others)

    created = kinds["treekit"].tree(1)
    readers = {
        "treekit": created,
        "treekit, rebuilt": jax.tree.map(lambda leaf: leaf, created),
        "plain dataclass": plain.tree(1),
    }
    yield Section(
        "Attributes of a node",
        "Reading attributes of a new node, and of a node that JAX has rebuilt.",
        columns(readers, read),
    )

    yield checked()

    steps: dict[str, Ratio] = {}
    for leaves in STEPS:
        tree = kinds["treekit"].tree(round(leaves / 2 / 65))
        trees = {"treekit": tree, "dicts": as_dicts(tree)}
        steps[f"{2 * len(jax.tree.leaves(tree)):,} leaves"] = columns(trees, donated_step)["donated_step"]["dicts"]
    text = "Dispatch of a step from (model, state) to (model, state), all donated: leaves in dicts / in nodes."
    yield Section("A training step on nodes", text, {"dicts": steps})


if __name__ == "__main__":
    show(sections(), *dict.fromkeys(library.package for _, library in installed()))
