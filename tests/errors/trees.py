"""Errors of tree_at, tree_diff, tree_summary and tree_shared, and of mistakes that every function meets."""

import dataclasses
import functools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from tests.trees import Point, Twig
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same, tree_shared

AT: Any = tk.tree_at
MAP: Any = tk.dtype_preserving_tree_map
MASK: Any = unchecked(tk.path_mask)
TREE = {"layers": [Twig(1, 2), Twig(3, None)], "head": Point(Twig(5, 6), (7, {"left": 8}))}
LINEAR: Any = eqx.nn.Linear
MLP = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
LAYERS = tk.tree_stack([LINEAR(2, 2, key=jax.random.key(i)) for i in range(2)])
PARAMS = {"w": jnp.ones(2), "b": jnp.ones(3)}
ARRAY: Any = jnp.ones(2)
CYCLE: list[Any] = []
CYCLE.append([CYCLE])
SGD = tko.sgd(1.0)
PARTITION = functools.partial(tko.partition, {"a": SGD})


@dataclasses.dataclass
class Rooted:
    """A class whose own code runs whenever JAX rebuilds it, and whose children have no names."""

    root: Any
    buffer: Any = dataclasses.field(default=None, metadata={"trainable": False})

    def __post_init__(self) -> None:
        self.root = jnp.sqrt(self.root)


def cell() -> Any:
    """What a cell of a notebook defines each time that it is run."""

    @tk.node
    class Cell:
        x: Any

    return Cell


register: Any = jax.tree_util.register_pytree_node
register(Rooted, lambda x: ((x.root, x.buffer), None), lambda _, children: Rooted(*children))
ROOTED = Rooted(jnp.full(2, 16.0))
UNREGISTERED = Mistake(dict, TypeError, "")  # any dataclass that JAX does not know


MISTAKES: dict[str, Mistake] = {
    "the arguments of dtype_preserving_tree_map the other way round": Mistake(
        lambda: unchecked(tk.dtype_preserving_tree_map)({"w": jnp.ones(2)}, abs), TypeError, "(f, tree)"
    ),
    "no input to scan": Mistake(
        lambda: unchecked(tk.filter_scan)(eqx.nn.Linear(2, 2, key=jax.random.key(0)), jnp.ones(2)),
        ValueError,
        "tree_stack(layers)",
    ),
    "layers that are not stacked": Mistake(
        lambda: unchecked(tk.filter_scan)(lambda x, f: (f(x), None), jnp.ones(2), [Point(jnp.ones(2), 1)] * 2),
        TypeError,
        "treekit.tree_stack(xs)",
    ),
    "a layer for the function of a scan": Mistake(
        lambda: unchecked(tk.filter_scan)(eqx.nn.Linear(2, 2, key=jax.random.key(0)), jnp.ones(2), jnp.ones((3, 2))),
        TypeError,
        "with the carry, f32[2], and an entry of xs, f32[2]",
    ),
    "init and xs of a scan the other way round": Mistake(
        lambda: unchecked(tk.filter_scan)(lambda x, layer: (layer(x), None), LAYERS, jnp.ones((2, 2))),
        TypeError,
        "with the carry, Linear, and an entry of xs, f32[2]",
    ),
    # tree_at and tree_find, by name and by class
    "the arguments in another order": Mistake(lambda: AT(MLP, "bias", None), TypeError, "MLP"),
    "a mask for where": Mistake(lambda: tk.tree_find(TREE, MASK("**.left")), TypeError, "PathMask"),
    "an empty list for where": Mistake(lambda: AT([], TREE, replace_fn=str), ValueError, "where"),
    "a name with a typo": Mistake(lambda: AT("layers.0.lfet", TREE, 0), ValueError, "layers.0.left"),
    "a class without instances": Mistake(lambda: AT(LINEAR, TREE, 0), ValueError, "Linear"),
    "a class that was defined again": Mistake(lambda: AT(cell(), cell()(1), 0), ValueError, "defined again"),
    "a regular expression for a part of a name": Mistake(
        lambda: AT(re.compile("left"), TREE, 0), ValueError, "part of head.x.left"
    ),
    "a regular expression for nothing": Mistake(lambda: AT(re.compile("lfet"), TREE, 0), ValueError, "'.*'"),
    "the name of a static field": Mistake(lambda: AT("layers.0.name", TREE, "a"), ValueError, "Twig.name"),
    "a field of an object that is not a node": Mistake(lambda: AT("0.fact", [UNREGISTERED], ""), ValueError, "0.fact"),
    "two nodes of one name": Mistake(lambda: AT("a.b", {"a.b": 1, "a": {"b": 2}}, 0), ValueError, "'a.b'"),
    "a node and what is in it": Mistake(
        lambda: AT(["head", "**.left"], TREE, replace_fn=str), ValueError, "head.x.left"
    ),
    "several nodes for one value": Mistake(lambda: AT("layers.*", TREE, 0), ValueError, "layers.1"),
    "a node by name and by class": Mistake(lambda: AT(["head", Point], TREE, [0, 1]), ValueError, "head"),
    "a class that computes when it is rebuilt": Mistake(lambda: AT("0", ROOTED, ARRAY), ValueError, "Rooted"),
    # tree_at, by a function
    "a predicate for where": Mistake(lambda: AT(eqx.is_array, MLP, 1), ValueError, "tree_at(jax.Array, tree"),
    "a predicate that reads a leaf": Mistake(
        lambda: AT(lambda x: x.ndim > 1, MLP, 1), AttributeError, "tree_at(jax.Array, tree, replace_fn=f)"
    ),
    "a static field of a node": Mistake(lambda: AT(lambda t: t.name, Twig(1), "b"), ValueError, "Twig.name"),
    "a value that is computed, and long": Mistake(lambda: AT(lambda t: "a" * 999, [1], 1), ValueError, "aaa…"),
    "a dict of nodes": Mistake(lambda: AT(lambda t: {"a": t[0]}, [1, 2], [1]), ValueError, "'a'"),
    "a value of its own next to a node": Mistake(
        lambda: AT(lambda t: ((), t[0]), [None] * 2, (2, 3)), ValueError, "()"
    ),
    "None, where no leaf is None": Mistake(lambda: AT(lambda t: None, [1], 1), ValueError, "None"),
    "None, where another leaf is None": Mistake(
        lambda: AT(lambda t: t["a"].get("bais"), {"a": {"bias": None}}, 1), ValueError, "where returned None"
    ),
    "None, where there are two": Mistake(lambda: AT(lambda t: t[0], [None, None], 1), ValueError, "0, 1; is_leaf"),
    "a node twice": Mistake(lambda: AT(lambda t: (t[1], t[1]), [1, 2], [1, 2]), ValueError, "at 1 twice"),
    "a node and a node in it": Mistake(
        lambda: AT(lambda t: (t[1][0], t[1]), [2, [1]], [1, 2]), ValueError, "at 1.0, which is inside"
    ),
    "nothing": Mistake(lambda: AT(lambda t: (), [1], [1]), ValueError, "strict"),
    "an attribute of a leaf": Mistake(lambda: AT(lambda t: t["a"][0].real, {"a": [1.0]}, 1), AttributeError, "real"),
    "leaves that have a value": Mistake(
        lambda: AT(lambda t: [x for x in t if x], [0, 1], [3]), ValueError, "structure"
    ),
    "the leaf that has a value": Mistake(
        lambda: AT(lambda t: t[0] if t[1] is len else t[1], [1, len], 3), ValueError, "structure"
    ),
    "a class that computes": Mistake(lambda: AT(lambda t: t.root, ROOTED, ARRAY), TypeError, "register_node"),
    "where raises": Mistake(lambda: AT(lambda t: t["b"], {"a": 1}, 2), KeyError, "where"),
    "where computes": Mistake(lambda: AT(lambda t: t["a"] * 2, {"a": 1}, 2), TypeError, "where"),
    # The replacements
    "both replace and replace_fn": Mistake(lambda: AT("head", TREE, 1, str), ValueError, "replace_fn"),
    "neither replace nor replace_fn": Mistake(lambda: AT("head", TREE), ValueError, "replace_fn"),
    "a function for an array": Mistake(lambda: AT("layers.0.bias", MLP, jnp.zeros_like), TypeError, "layers.0.bias"),
    "a string for a list": Mistake(lambda: AT(["0", "1"], [1, 2], "ab"), TypeError, "found 'ab'"),
    "an array for a list": Mistake(
        lambda: AT(["layers.0.bias", "layers.1.bias"], MLP, ARRAY), TypeError, "found f32[2]"
    ),
    "one value for a list": Mistake(lambda: AT(["head"], TREE, 3), TypeError, "replace"),
    "too many values for a list": Mistake(lambda: AT(["head"], TREE, [0, 1]), ValueError, "2 values"),
    "too few values for a list": Mistake(lambda: AT(["head", "layers"], TREE, [0]), ValueError, "2 values"),
    "replace_fn raises": Mistake(lambda: AT(["b", "a.0"], {"a": [[]], "b": 2}, replace_fn=len), TypeError, "for b"),
    "replace_fn raises at a function's node": Mistake(
        lambda: AT(lambda t: [t["b"], t["a"][0]], {"a": [1], "b": []}, replace_fn=len), TypeError, "for a.0"
    ),
    "replace_fn raises at the root": Mistake(lambda: AT(int, 1, replace_fn=len), TypeError, "the root"),
    "strict=no for tree_at": Mistake(lambda: unchecked(AT)("head", TREE, 0, strict="no"), TypeError, "strict"),
    # Other functions of trees
    "trees that differ": Mistake(lambda: assert_trees_same({"w": 1}, {"w": 2}), AssertionError, "w  value"),
    "tree_summary of a class": Mistake(lambda: tk.tree_summary(LINEAR), TypeError, "tree_summary(Linear"),
    "a depth that is a word": Mistake(lambda: unchecked(tk.tree_summary)(TREE, depth="1"), TypeError, "depth must be"),
    "a negative depth": Mistake(lambda: tk.tree_summary(TREE, depth=-1), ValueError, "-1"),
    "a tree that contains itself": Mistake(lambda: tk.tree_summary(CYCLE), RecursionError, "0.0.0"),
    "graft of a tree that contains itself": Mistake(lambda: tk.graft([1.0], CYCLE), RecursionError, "recursion depth"),
    "tree_find in a tree that contains itself": Mistake(
        lambda: tk.tree_find(CYCLE, "**.b"), RecursionError, "recursion depth"
    ),
    "tree_at in a tree that contains itself": Mistake(lambda: AT("**.b", CYCLE, 1), RecursionError, "recursion depth"),
    "tree_shared of a class": Mistake(lambda: tree_shared(LINEAR), TypeError, "tree_shared(Linear"),
    "tree_shared in jit": Mistake(lambda: jax.jit(lambda x: tree_shared({"a": x}))(ARRAY), TypeError, "a is traced"),
    "trainable without key paths": Mistake(lambda: tk.trainable([ROOTED]), TypeError, "Rooted.buffer"),
    # Trees that do not fit, and dtypes
    "another tree to map over": Mistake(lambda: MAP(max, {"a": [1]}, {"a": []}), ValueError, "tree.a"),
    "another tree around a class that computes": Mistake(
        lambda: MAP(max, {"a": ROOTED, "b": 1}, {"a": ROOTED, "c": 1}), ValueError, "2 children: a, c"
    ),
    "a dict to map over as a list": Mistake(lambda: MAP(max, [1], [1], {}), ValueError, "rest[1]"),
    "updates for other params": Mistake(
        lambda: tko.apply_updates([PARAMS], [{"w": ARRAY, "c": ARRAY}]), ValueError, "at 0"
    ),
    "a tree of updates for a leaf": Mistake(
        lambda: tko.apply_updates([ARRAY, PARAMS], [[ARRAY], [ARRAY]]), ValueError, "a leaf"
    ),
    "an int that does not fit": Mistake(lambda: MAP(lambda x: 300, jnp.zeros(2, "int8")), OverflowError, "300"),
    # What was meant, at the border of two functions
    "a pattern for a filter_spec": Mistake(lambda: tk.filter(MLP, "layers.2.**"), ValueError, "path_mask"),
    "a class for a state dict": Mistake(lambda: tk.to_state_dict(eqx.nn.MLP), TypeError, "class MLP"),
    "a class for a vector": Mistake(lambda: tk.tree_ravel(eqx.nn.MLP), TypeError, "class MLP"),
    "a class for labels": Mistake(lambda: PARTITION(LINEAR).init(MLP), ValueError, "path_labels"),
    "a class for rates": Mistake(lambda: training.scale_by_tree(LINEAR).init(MLP), ValueError, "path_labels"),
}
