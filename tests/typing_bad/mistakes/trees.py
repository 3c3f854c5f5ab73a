"""Mistakes in filters, edits, maps and comparisons of trees. See tests/test_typing.py."""

import jax
import jax.numpy as jnp

import treekit as tk
from treekit import training
from treekit.testing import assert_trees_same


@tk.node
class Model:
    weight: jax.Array
    bias: jax.Array


@tk.node
class Other:
    scale: jax.Array


def edits(model: Model, other: Other, weight: jax.Array) -> None:
    tk.tree_at(lambda m: m.wieght, model, weight)  # both
    tk.tree_at(model, lambda m: m.weight, weight)  # both
    tk.tree_at(lambda m: m.weight, model)  # both
    tk.tree_at(lambda m: m.weight, model, "zeros")  # neither: a leaf may be replaced by anything, such as None
    edited: Other = tk.tree_at(lambda m: m.weight, model, weight)  # both


def filters(model: Model, other: Other) -> None:
    tk.filter(tk.is_array, model)  # neither: a filter_spec is a tree of any class, and a tree may be a function
    _left, _right, _rest = tk.partition(model)  # both
    tk.combine(model, other)  # neither: T is then `object`, since a TypeVar widens to what fits
    mask: Model = tk.path_mask("**.bias")  # both
    tk.path_labels("**.bias", default="train")  # both
    tk.is_array(model).all()  # both


def maps(model: Model, x: jax.Array, key: jax.Array) -> None:
    tk.dtype_preserving_tree_map(jnp.sin, model, casting="safe")  # both
    tk.dtype_preserving_tree_map(lambda leaf, other: leaf + other, model)  # both
    training.stochastic_round(x, jnp.bfloat16, 0)  # both
    tk.tree_stack(model)  # both
    new: Model = tk.graft(model, model)  # both
    if assert_trees_same(model, model):  # mypy
        pass


def options(model: Model, x: object) -> None:
    tk.tree_at(lambda m: m.weight, model, replace=None, replace_fn=str)  # both
    tk.filter(model, tk.is_array, is_leaf=True)  # both
    tk.resolve_spec(True, model, name="mask")  # both
    tk.tree_diff(model, model, 1e-3)  # both
    x(model)  # both
    if tk.is_truly_callable(x):
        x(model)
    if tk.is_array(x):
        x.dtype
        x.weight  # both
