"""Example trees of every kind of node, and Hypothesis strategies for more of them."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import treekit as tk

# The names of the dtypes that JAX gives a Python int and float: of 32 bits, or of 64 under jax_enable_x64.
INT, FLOAT = (jnp.asarray(number).dtype.name for number in (1, 1.0))

# Functions and classes of JAX whose types, in part, no checker knows.
untyped: Any = jax
_tree_util = untyped.tree_util


class Point(NamedTuple):
    x: Any
    y: Any


class Box(eqx.Module):
    value: Any
    spare: Any = None
    name: str = eqx.field(default="box", static=True)

    def __call__(self, x: Any) -> Any:
        raise AssertionError("a tree was called")


@tk.node
class Twig:
    left: Any
    right: Any = None
    name: Hashable = tk.field(default="twig", static=True)


class Halved:
    """A class that exists already, and whose `__init__` prepares what it is given."""

    def __init__(self, value: Any) -> None:
        self.value = value / 2


tk.register_node(Halved, ["value"], [])


class Refusing:
    """Raises when it is compared, shown, hashed, taken for a bool or asked for anything it has not."""

    def refuse(self, *_: object) -> Any:
        raise RuntimeError("leave me alone")

    __eq__ = __hash__ = __bool__ = __len__ = __repr__ = __getattr__ = refuse


LEAVES: tuple[Any, ...] = (
    jnp.arange(3.0),
    jnp.ones((2, 2), jnp.bfloat16),
    jnp.array(3),
    jnp.array([True, False]),
    jax.random.key(0),
    np.ones(2),
    np.float32(1.5),
    True,
    1,
    2.5,
    1j,
    "text",
    jax.nn.relu,
    len,
    object(),
)

EXAMPLES: dict[str, Any] = {
    "leaf": 1,
    "None": None,
    "empty tuple": (),
    "empty dict": {},
    "dict": {"w": jnp.ones((2, 2)), "b": jnp.zeros(2), "name": "dense"},
    "list": [1, [2.5, "text"], []],
    "tuple": (1, (2, (3, ())), ()),
    "namedtuple": Point(Point(1, 2), None),
    "linear": eqx.nn.Linear(2, 3, key=jax.random.key(0)),
    "mlp": eqx.nn.MLP(2, 1, 3, depth=1, key=jax.random.key(1)),
    "module": Box([1, None], Box(2, name="inner")),
    "node": Twig({"a": 1}, Twig(jnp.ones(2), name="inner")),
    "registered": Halved(np.ones(2)),
    "mixed": {"a": [Point(Box(1), Twig((2, None))), Halved(4.0)], "b": ({}, [None])},
}


# Hypothesis wants a strategy to draw no random numbers but its own. Creating a node does, since beartype checks random
# items of containers while testing; rebuilding one does not.
_TWIGS = tuple(_tree_util.tree_structure(Twig(0, 0, name)) for name in ("twig", "branch"))


def _parents(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), children, max_size=3),
        st.builds(Point, children, children),
        st.builds(Box, children, children, st.sampled_from(["box", "chest"])),
        st.builds(lambda twig, *below: twig.unflatten(below), st.sampled_from(_TWIGS), children, children),
    )


def trees(leaves: tuple[Any, ...] = LEAVES) -> st.SearchStrategy[Any]:
    """Trees of dicts, lists, tuples, namedtuples, None, Equinox modules and treekit nodes over the given leaves."""
    return st.recursive(st.none() | st.sampled_from(leaves), _parents, max_leaves=8)


def is_leaf(x: Any) -> bool:
    """Whether JAX takes an object for a leaf: not for None, which is a node without children."""
    return bool(_tree_util.all_leaves([x]))


@st.composite
def prefixes(draw: st.DrawFn, tree: Any, leaves: st.SearchStrategy[Any]) -> Any:
    """A prefix of a tree with other leaves; None stands for None."""
    if is_leaf(tree) or draw(st.integers(0, 3)) == 0:
        return draw(leaves)
    below, treedef = _tree_util.tree_flatten(tree, is_leaf=lambda x: x is not tree)
    return treedef.unflatten([draw(prefixes(child, leaves)) for child in below])


def places(tree: Any) -> dict[tuple[Any, ...], Any]:
    """Every node of a tree, the root and the leaves among them, by key path."""
    found = {(): tree}
    if not is_leaf(tree):
        for path, child in _tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]:
            found |= {(*path, *rest): node for rest, node in places(child).items()}
    return found


def follow(path: tuple[Any, ...], tree: Any) -> Any:
    """The node of a tree at a key path."""
    return places(tree)[path]


def identical(a: Any, b: Any) -> bool:
    """Whether two trees have one structure and the very same leaves."""
    a_leaves, a_structure = _tree_util.tree_flatten(a)
    b_leaves, b_structure = _tree_util.tree_flatten(b)
    same: bool = a_structure == b_structure
    return same and all(x is y for x, y in zip(a_leaves, b_leaves, strict=True))


def deleted() -> jax.Array:
    """An array as it is left after donation."""
    x = jnp.ones(2, jnp.float32)
    x.delete()
    return x
