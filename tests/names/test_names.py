"""Errors and reports write the name of a leaf as patterns do, so that it can be given back to them."""

import itertools
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx, struct
from flax.core import meta

import treekit as tk
from tests.trees import Box, untyped
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same

MODEL = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.ones(2)}]}


class Linen(linen.Module):
    """With params in boxes, as for a mesh."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        ones: Any = linen.initializers.ones
        x = linen.Dense(3, kernel_init=linen.with_partitioning(ones, (None, "m")), name="a")(x)
        return linen.Dense(2, kernel_init=linen.with_logical_partitioning(ones, ("in", "out")), name="b")(x)


BOXED: Any = Linen().init(jax.random.key(0), jnp.ones((1, 4)))["params"]
UNBOXED: Any = meta.unbox(BOXED)


# A box of one's own, with another child than its value, and the methods that a box must have.
methods = dict.fromkeys(["unbox", "replace_boxed", "add_axis", "remove_axis"], abs)
fields = {"__annotations__": {"value": Any, "scale": Any}, "__module__": __name__}
own_box: Any = types.new_class(
    "OwnBox", (struct.PyTreeNode, meta.AxisMetadata), exec_body=lambda body: body.update(fields | methods)
)


class Net(nnx.Module):
    def __init__(self) -> None:
        self.lin = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        self.pair = nnx.Param((jnp.ones(2), {"b": jnp.ones(3)}))


# Trees, with variables of Flax among them, and the names of their leaves in order: a variable and its value have one.
TREES: dict[str, tuple[Any, list[str]]] = {
    "keys and indices": (MODEL, ["layers.0.w", "layers.1.w"]),
    "a module": (Net(), ["lin.bias", "lin.kernel", "pair.0", "pair.1.b"]),
    "a state": (nnx.state(Net()), ["lin.bias", "lin.kernel", "pair.0", "pair.1.b"]),
    "variables in a dict": ({"a": nnx.Param(jnp.ones(2)), "value": jnp.ones(3)}, ["a", "value"]),
    "boxes of Linen": (BOXED, ["a.bias", "a.kernel", "b.bias", "b.kernel"]),
    "a box that has more than a value": ({"w": own_box(jnp.ones(2), jnp.ones(3))}, ["w.value", "w.scale"]),
    "fields called value": ({"a": Box(jnp.ones(2)), "b": nnx.Param(jnp.ones(3))}, ["a.value", "b"]),
}


def params_of(tree: Any) -> Any:
    """What an optimizer takes: of a module of NNX, its state."""
    return nnx.state(tree) if isinstance(tree, nnx.Module) else tree


# What names the leaf of a tree with this name.
NAMED: dict[str, Callable[[Any, str], Any]] = {
    "path_mask": lambda tree, name: tk.path_mask(name).of_leaves(tree, None),
    "path_labels": lambda tree, name: tk.path_labels({name: True}, default=False).of_leaves(tree, None),
}
LISTED: dict[str, Callable[[Any], list[str]]] = {
    "tree_find": lambda tree: list(tk.tree_find(tree, "**")),
    "tree_summary": lambda tree: [row.name for row in tk.tree_summary(tree).rows],
    "to_state_dict": lambda tree: list(tk.to_state_dict(tree)),
    "tree_diff": lambda tree: [found.path for found in tk.tree_diff(tree, jax.tree.map(lambda x: x + 1, tree))],
    "summary": lambda tree: [row.path for row in training.summary(tko.adam(0.1), params_of(tree)).rows],
}


# What raises for a tree whose leaf with this name is wrong, and names it.
ADAM = tko.adam(0.1)
MISTAKES: dict[str, Callable[[Any, Any, str], Any]] = {
    "apply_gradients": lambda tree, wrong, name: training.apply_gradients(
        ADAM, params_of(wrong), ADAM.init(params_of(tree)), params_of(tree)
    ),
    "update": lambda tree, wrong, name: ADAM.update(params_of(wrong), ADAM.init(params_of(tree)), params_of(tree)),
    "apply_updates": lambda tree, wrong, name: tko.apply_updates(tree, wrong),
    "graft": lambda tree, wrong, name: tk.graft(tree, wrong, strict=True),
    "tree_stack": lambda tree, wrong, name: tk.tree_stack([tree, wrong]),
    "partition": lambda tree, wrong, name: tko.partition({"a": ADAM}, tk.path_labels({name: "b"}, default="a")).init(
        params_of(tree)
    ),
    "rates": lambda tree, wrong, name: training.scale_by_tree(tk.path_labels({name: "x"}, default=1.0)).init(
        params_of(tree)
    ),
    "masked": lambda tree, wrong, name: tko.masked(ADAM, tk.path_labels({name: "x"}, default=True)).init(
        params_of(tree)
    ),
}


@pytest.mark.parametrize("case", TREES)
def test_a_leaf_has_one_name(case: str) -> None:
    tree, names = TREES[case]
    for how, found in LISTED.items():
        assert [x for x in found(tree) if x in names] == names, how
        assert not any(name.endswith("value") for name in found(tree) if name not in names), how
    leaves = jax.tree.leaves(tree)
    for i, name in enumerate(names):
        for how, select in NAMED.items():
            assert select(tree, name) == [j == i for j in range(len(names))], how
        (node,) = tk.tree_find(tree, name).values()
        assert node is leaves[i]
        replaced = jax.tree.leaves(tk.tree_at(name, tree, jnp.zeros(())))
        assert [x.shape == () for x in replaced] == [j == i for j in range(len(names))]
        wrong = tk.tree_at(name, tree, replace_fn=lambda x: jnp.zeros((7, *x.shape)))
        for mistake in MISTAKES.values():
            with pytest.raises(
                (ValueError, TypeError), match=rf"(^|[\s'(]|rates\.){re.escape(name)}($|[\s,:;'.)](?!value))"
            ):
                mistake(tree, wrong, name)


def test_below_a_key_that_is_empty_names_begin_with_a_dot() -> None:
    """Not with its own parts alone, which may be those of another leaf."""
    tree: Any = {"": {"": jnp.ones(1), "a": jnp.ones(2)}, "a": jnp.ones(3)}
    names = [".", ".a", "a"]
    for how in ("to_state_dict", "tree_summary", "tree_diff"):
        assert LISTED[how](tree) == names, how
    assert list(tk.tree_find(tree, jax.Array)) == list(tk.tree_find(tree, lambda t: jax.tree.leaves(t))) == names
    for i, name in enumerate(names):
        assert tk.path_mask(name).of_leaves(tree, None) == [i == j for j in range(3)]
    got, report = tk.graft(jax.tree.map(jnp.zeros_like, tree), tk.to_state_dict(tree))
    assert [row.path for row in report.kept] == names
    assert_trees_same(got, tree)


@pytest.mark.parametrize("init", [lambda tree: tree, tko.chain(tko.adam(0.1), training.params_ema(0.9)).init])
def test_values_go_into_boxes_and_out_of_them_without_rename(init: Any) -> None:
    boxed, unboxed = init(BOXED), init(UNBOXED)
    ones = jax.tree.map(jnp.ones_like, (boxed, unboxed))
    for new, old in itertools.permutations(ones):
        got, report = tk.graft(jax.tree.map(lambda x: 0 * x, new), old)
        assert_trees_same(got, new)
        assert len(report.kept) == len(report)
    assert list(tk.to_state_dict(boxed)) == list(tk.to_state_dict(unboxed))


def test_what_a_name_selects_of_params_in_boxes_is_trained() -> None:
    mask = tk.path_mask("**.kernel")
    assert jax.tree.leaves(mask(BOXED)) == jax.tree.leaves(mask(UNBOXED)) == [False, True, False, True]
    found = tk.tree_find(BOXED, "**.kernel")
    assert list(found) == ["a.kernel", "b.kernel"] and all(isinstance(x, jax.Array) for x in found.values())
    labels = tk.path_labels({"**.kernel": "a"}, default="b")
    optimizers: list[Any] = [
        tko.transforms.selective_transform(tko.sgd(1.0), freeze_mask=~mask),
        tko.chain(tko.sgd(1.0), training.scale_by_tree(tk.path_labels({"**.kernel": 1.0}, default=0.0))),
        tko.partition({"a": tko.sgd(1.0), "b": tko.set_to_zero()}, labels),
    ]
    for tx in optimizers:
        boxed, unboxed = (jax.tree.map(jnp.ones_like, x) for x in (BOXED, UNBOXED))
        got, want = (training.apply_gradients(tx, x, tx.init(x), x)[0] for x in (boxed, unboxed))
        assert untyped.tree.structure(got) == untyped.tree.structure(boxed)
        assert_trees_same(meta.unbox(got), want)
        assert [float(x.max()) for x in tk.to_state_dict(got).values()] == [1.0, 0.0, 1.0, 0.0]
    replaced: Any = tk.tree_at("a.kernel", BOXED, 3)
    assert type(replaced["a"]["kernel"]) is linen.Partitioned and replaced["a"]["kernel"].value == 3
    assert list(tk.tree_find(BOXED, linen.Partitioned).values()) == [BOXED["a"]["kernel"], BOXED["b"]["kernel"]]
