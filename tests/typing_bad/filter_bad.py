"""What the checkers must refuse in the use of the predicates and the filters."""

import jax

import treekit as tk


class Model:
    weight: jax.Array


def bad(model: Model, x: object) -> None:
    other: dict[str, int] = tk.filter_arrays(model)  # E: arg-type
    tk.filter_arrays(model).bias  # E: attr-defined
    arrays, static = tk.partition(model)
    arrays.bias  # E: attr-defined
    wrong: int = tk.combine(arrays, static)  # E: assignment
    tk.filter(model)  # E: call-arg
    tk.filter(model, tk.is_array, keep=True)  # E: call-arg
    tk.filter(model, tk.is_array, is_leaf=True)  # E: arg-type
    tk.filter(model, lambda leaf: True).bias  # E: attr-defined
    x.dtype  # E: attr-defined
    if tk.is_array(x):
        x.dtype
        x.weight  # E: union-attr
