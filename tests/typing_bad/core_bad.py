"""What the checkers must refuse in the use of specs, tree maps, tree_at and tree_diff."""

from typing import Literal

import jax

import treekit as tk


class Model:
    weight: jax.Array


def bad(model: Model, x: object, unsafe: str) -> None:
    x(model)  # E: operator
    if tk.is_truly_callable(x):
        x(model)
    tk.is_truly_callable(x, model)  # E: call-overload
    tk.resolve_spec(True, model, name="mask")  # E: call-arg
    tk.resolve_spec(True, model, lambda leaf: leaf is True, "mask")  # E: call-arg
    tk.resolve_spec(True, model, is_spec_leaf=True, name="mask")  # E: arg-type

    tk.dtype_preserving_tree_map(lambda leaf: leaf, model).bias  # E: attr-defined
    tk.dtype_preserving_tree_map(lambda leaf: leaf, model, casting="safe")  # E: call-overload
    tk.dtype_preserving_tree_map(lambda leaf: leaf, model, casting=unsafe)  # E: call-overload
    tk.dtype_preserving_tree_map(model, lambda leaf: leaf)  # E: call-overload
    tk.dtype_preserving_tree_map(lambda leaf: leaf, model, model)  # E: misc, arg-type
    tk.dtype_preserving_tree_map(lambda leaf, other: leaf, model)  # E: misc, arg-type
    tk.dtype_preserving_tree_map(lambda leaf, other: leaf, model, model, model)  # E: misc, arg-type

    tk.tree_at(lambda m: m.bias, model, None)  # E: attr-defined
    tk.tree_at(model, lambda m: m.weight, None)  # E: call-overload
    tk.tree_at(lambda m: m.weight, model, None).bias  # E: attr-defined
    tk.tree_at(lambda m: m.weight, model, replace_with=None)  # E: call-overload
    tk.tree_at(lambda m: m.weight, model, replace_fn=1)  # E: call-overload
    tk.tree_at(lambda m: m.weight, model)  # E: call-overload
    tk.tree_at(lambda m: m.weight, model, None, str)  # E: call-overload
    tk.tree_at(lambda m: m.weight, model, replace=None, replace_fn=str)  # E: call-overload

    tk.tree_diff(model)  # E: call-arg
    tk.tree_diff(model, model, 1e-3)  # E: arg-type, call-arg
    tk.tree_diff(model, model)[0].where  # E: attr-defined
    same: bool = tk.assert_trees_same(model, model)  # E: assignment, func-returns-value
    kind: Literal["shape", "dtype"] = tk.tree_diff(model, model)[0].kind  # E: assignment
