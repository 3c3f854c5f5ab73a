"""Errors of functions on the leaves of a tree: filter, masks by key path, maps, stack, round, trainable."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from tests.trees import Point, Twig
from treekit import optax as tko
from treekit import training
from treekit._missing import getattr_of

KEY = jax.random.key(0)
LINEAR = eqx.nn.Linear(2, 2, key=KEY)
X = jnp.ones(2)
LAYERS = {"layers": [{"w": X}, {"w": X}]}
WIDER = {"layers": [{"w": X}, {"w": jnp.ones(3)}]}
MASK: Any = tk.path_mask("**.w")
LABELS = tk.path_labels({"**.w": 1})
TRUE: Any = True
NO: Any = "no"
MODULE: Any = tk
TREE_MAP = unchecked(tk.dtype_preserving_tree_map)


def resolve(mask: Any) -> object:
    return tk.resolve_spec(mask, {"w": X, "b": jnp.ones((2, 2))}, is_spec_leaf=lambda x: type(x) is bool, name="mask")


def has_axes(leaf: Any) -> bool:
    return bool(leaf.ndim > 0)


def is_long(leaf: Any) -> bool:
    return bool(next(iter(leaf.shape)) > 1)


def scan(f: Any, init: object, xs: object = None, **options: Any) -> object:
    return unchecked(tk.filter_scan)(f, init, xs, length=3, **options)


MISTAKES: dict[str, Mistake] = {
    # masks and labels by key path
    "a mask of no pattern": Mistake(tk.path_mask, ValueError, "path_mask"),
    "an empty pattern": Mistake(lambda: tk.path_mask(""), ValueError, "empty"),
    "a pattern over bytes": Mistake(lambda: unchecked(tk.path_mask)(re.compile(b"a")), TypeError, "b'a'"),
    "a list of patterns": Mistake(lambda: unchecked(tk.path_mask)(["a", "b"]), TypeError, "['a', 'b']"),
    "strict that is a word": Mistake(lambda: unchecked(tk.path_mask)("a", strict="no"), TypeError, "strict"),
    "strict labels by a number": Mistake(lambda: unchecked(tk.path_labels)({"a": 1}, strict=0), TypeError, "strict"),
    "a misspelt pattern": Mistake(
        lambda: tk.path_mask("**.w", "layers.*.v")(LAYERS), ValueError, "layers.1.w, layers.0.w"
    ),
    "a pattern for one array": Mistake(lambda: tk.path_mask(re.compile("w"))(X), ValueError, "one leaf, f32[2]"),
    "a mask as a filter of Equinox": Mistake(
        lambda: eqx.filter(LAYERS, tk.path_mask("layers.0.**")), ValueError, "treekit.filter"
    ),
    "a class in a filter of Equinox": Mistake(lambda: eqx.filter([X], tk.path_mask(list)), ValueError, "one leaf"),
    "labels that are pairs": Mistake(lambda: unchecked(tk.path_labels)([("w", 1)]), TypeError, "[('w', 1)]"),
    "labels for an empty tree": Mistake(lambda: tk.path_labels({"x": 1}, default=2)({}), ValueError, "'x'"),
    "a class that is not there": Mistake(
        lambda: tk.path_mask("a", int)({"a": X, "b": None, "c": "x"}), ValueError, "dict, jax.Array, str"
    ),
    "a class for an empty tree": Mistake(lambda: tk.path_mask(int)(None), ValueError, "int"),
    "a name of two leaves": Mistake(lambda: tk.path_mask("**.b")({"a.b": 1, "a": {"b": 2}}), ValueError, "'a.b'"),
    "params without a label": Mistake(
        lambda: tk.path_labels({"0": 0})([1.0] * 10), ValueError, "1, 2, 3, 4, 5 and 4 more"
    ),
    "a row that earlier ones hide": Mistake(
        lambda: tk.path_labels({"**.w": 1, dict: 2, "a.*": 3})({"a": {"w": 1, "v": 2}}), ValueError, "'**.w', dict"
    ),
    # leaf_mask, and masks combined with something else
    "a leaf_mask that raises": Mistake(
        lambda: tk.leaf_mask(is_long)({"a": X, "b": jnp.ones(())}), ValueError, "leaf b"
    ),
    "a leaf_mask that returns an array": Mistake(
        lambda: tk.leaf_mask(lambda x: x > 0)(LAYERS), ValueError, "layers.0.w"
    ),
    "a leaf_mask that asks for a traced value": Mistake(
        lambda: jax.jit(lambda x: tk.leaf_mask(lambda leaf: leaf.sum() > 0)({"w": x}))(X), ValueError, "leaf w"
    ),
    "a leaf_mask of a class": Mistake(lambda: unchecked(tk.leaf_mask(has_axes))(eqx.nn.Linear), TypeError, "Linear"),
    "a mask and a tree of bools": Mistake(lambda: MASK & TRUE, TypeError, "& True"),
    "a mask or a name": Mistake(lambda: MASK | NO, TypeError, "path_mask('no')"),
    "`not mask`": Mistake(lambda: not MASK, TypeError, "path_mask('**.w')"),
    "labels `or` others": Mistake(lambda: LABELS or MASK, TypeError, "path_labels({'**.w': 1})"),
    "a mask of a class": Mistake(lambda: MASK(eqx.nn.Linear), TypeError, "class Linear"),
    "what is trainable in a class": Mistake(lambda: tk.trainable(eqx.nn.Linear), TypeError, "class Linear"),
    # filters
    "a class for a filter": Mistake(
        lambda: unchecked(tk.filter)(LAYERS, eqx.nn.Linear), ValueError, "path_mask(Linear)"
    ),
    "labels for a filter": Mistake(lambda: tk.filter({"a": 1}, tk.path_labels({"**": "x"})), ValueError, "leaf a"),
    "a mask of another structure": Mistake(
        lambda: tk.filter(LAYERS, {"layers": [True, {"w": [True]}]}), ValueError, "filter_spec.layers.1.w"
    ),
    "a mask with another static value": Mistake(
        lambda: tk.filter({"m": Twig(1, name="a")}, {"m": Twig(True, name="b")}), ValueError, "filter_spec.m.name"
    ),
    "a word for an option": Mistake(
        lambda: tk.filter([1, 2], tk.is_array, inverse=NO), TypeError, "inverse must be True or False"
    ),
    "a mask with None": Mistake(lambda: tk.filter([1, 2], [True, None]), ValueError, "filter_spec.1"),
    "a pattern in a filter": Mistake(lambda: tk.filter(LAYERS, {"layers": ["w", True]}), ValueError, "layers.0"),
    "a traced bool in a filter": Mistake(
        lambda: jax.jit(lambda keep: tk.filter([1.0], [keep]))(True), ValueError, "at 0"
    ),
    "a predicate on traced values": Mistake(
        lambda: jax.jit(lambda tree: tk.filter(tree, lambda x: (x > 0).all()))({"w": X}),
        ValueError,
        "leaf w",
    ),
    "a predicate on arrays": Mistake(lambda: tk.filter({"a": X, "b": [jax.nn.relu]}, has_axes), ValueError, "b.0"),
    "a predicate that stops an iteration": Mistake(
        lambda: tk.filter({"a": X, "b": jnp.ones(())}, is_long), ValueError, "StopIteration"
    ),
    "a predicate below is_leaf": Mistake(
        lambda: tk.filter([(1, 2), "x"], [(True, True), has_axes], is_leaf=lambda x: x == (1, 2)), ValueError, "leaf 1"
    ),
    "a predicate before the tree": Mistake(
        lambda: tk.filter(eqx.is_array, {"w": 1.0}), ValueError, "(tree, filter_spec)"
    ),
    "a mask before the tree": Mistake(lambda: tk.filter({"w": True}, {"w": X}), ValueError, "(tree, filter_spec)"),
    "trees that do not combine": Mistake(
        lambda: tk.combine({"a": [1, None]}, {"a": [1, None]}, {"a": [None]}), ValueError, "rest[1]"
    ),
    "a pair that is combined as one tree": Mistake(
        lambda: tk.combine(tk.partition({"w": X, "f": jax.nn.relu})), TypeError, "combine(*parts)"
    ),
    "optimizers by label": Mistake(
        lambda: unchecked(tk.partition)({"a": tko.sgd(1.0), "b": tko.sgd(2.0)}, {"w": "a"}),
        ValueError,
        "treekit.optax.partition",
    ),
    # maps
    "a cast of another name": Mistake(lambda: TREE_MAP(abs, 1, casting="safe"), ValueError, "'safe'"),
    "halves of integers": Mistake(lambda: TREE_MAP(lambda n: n / 2, Twig(X, {"n": (1,)})), TypeError, "right.n.0"),
    "a function for a number": Mistake(lambda: TREE_MAP(lambda _: len, [1.0]), TypeError, "builtin"),
    "an average of two shapes": Mistake(lambda: tko.incremental_update(LAYERS, WIDER, 0.5), ValueError, "layers.1.w"),
    # stacks and vectors
    "a tree for a list of trees": Mistake(lambda: tk.tree_stack(Point(X, X)), TypeError, "Point"),
    "no tree to stack": Mistake(lambda: tk.tree_stack([]), ValueError, "tree_stack"),
    "layers of two shapes": Mistake(lambda: tk.tree_stack([LAYERS, LAYERS, WIDER]), ValueError, "layers.1.w"),
    "an array and a shape": Mistake(
        lambda: tk.tree_stack([{"x": X}, {"x": jax.eval_shape(lambda: X)}]), ValueError, "ShapeDtypeStruct"
    ),
    "nothing to unstack": Mistake(lambda: tk.tree_unstack([0, {"n": 3}]), ValueError, "{'n': 3}"),
    "a number to unstack": Mistake(lambda: tk.tree_unstack(jnp.ones(())), ValueError, "the root"),
    "first axes of two lengths": Mistake(lambda: tk.tree_unstack([X, X, jnp.ones(3)]), ValueError, "at 2"),
    "a vector of another length": Mistake(lambda: tk.tree_ravel(jnp.ones(3))[1](X), ValueError, "(3,)"),
    "a column for a vector": Mistake(lambda: tk.tree_ravel(X)[1](jnp.ones((2, 1))), ValueError, "[2,1]"),
    "a complex vector for real arrays": Mistake(lambda: tk.tree_ravel(X)[1](X.astype(complex)), TypeError, "complex"),
    "an array of NumPy in bf16": Mistake(
        lambda: tk.tree_ravel({"a": X, "b": [np.ones(2, ml_dtypes.bfloat16)]}), TypeError, "b.0"
    ),
    # scans
    "no function for a scan": Mistake(lambda: scan(None, X), TypeError, "found None"),
    "a policy by name": Mistake(lambda: scan(lambda x, _: (x, None), X, checkpoint="dots"), TypeError, "'dots'"),
    "a number for each step": Mistake(
        lambda: scan(lambda x, _: (x, None), X, {"a": jnp.ones(3), "b": jnp.ones(())}), ValueError, "xs.b"
    ),
    "a step without an output": Mistake(lambda: scan(lambda x, _: x, LINEAR), TypeError, "Linear"),
    "a carry that changes": Mistake(
        lambda: scan(lambda carry, _: ((carry[0], carry[1] + 1), None), (X, 0)), TypeError, "0 | 1"
    ),
    # rounding
    "a dtype of integers": Mistake(lambda: training.stochastic_round(X, jnp.int8, KEY), TypeError, "int8"),
    "a key for a dtype": Mistake(lambda: training.stochastic_round(X, KEY, jnp.bfloat16), TypeError, "key<fry>"),
    "integers to round": Mistake(lambda: training.stochastic_round(jnp.arange(3), jnp.bfloat16, KEY), TypeError, "[3]"),
    "complex numbers in a real dtype": Mistake(
        lambda: training.stochastic_round(X.astype(complex), jnp.bfloat16, KEY), TypeError, "bfloat16"
    ),
    "several keys": Mistake(
        lambda: training.stochastic_round(X, jnp.bfloat16, jax.random.split(KEY, 3)), TypeError, "key<fry>[3]"
    ),
    # masks that are trees or functions
    "a class for a mask": Mistake(lambda: resolve(eqx.nn.Linear), ValueError, "path_mask"),
    "a mask that does not fit": Mistake(lambda: resolve({"w": [True], "b": True}), ValueError, "mask.w"),
    "None for a param": Mistake(lambda: resolve({"w": None, "b": True}), ValueError, "mask.w"),
    "a mask function that raises": Mistake(lambda: resolve(lambda p: p["v"]), ValueError, "KeyError: 'v'"),
    "a mask function that gives a misfit": Mistake(
        lambda: resolve(lambda p: {"w": True, "b": [True]}), ValueError, "mask(params).b"
    ),
    "a predicate for a mask": Mistake(lambda: resolve(lambda x: getattr(x, "ndim", 0) > 1), ValueError, "at b"),
    "a mask without a leaf": Mistake(lambda: resolve(jax.tree.map(lambda _: None, LINEAR)), ValueError, "as mask"),
    # names that are in another module
    "Optax before it is imported": Mistake(
        lambda: getattr_of("treekit")("optax"), AttributeError, "from treekit import optax"
    ),
    "a name of treekit.optax in treekit": Mistake(lambda: MODULE.adam, AttributeError, "treekit.optax.adam"),
}
