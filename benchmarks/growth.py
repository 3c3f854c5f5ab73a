"""How the time of each public function grows with the number of leaves: the table of results/growth.md.

The exponent is that of a power law between the two sizes: 1 is linear. What training calls in jit is traced here, not
run; everything else is called outside of jit.

Run `python -m benchmarks.growth` (QUICK=1 for a short look).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax as plain

import treekit as tk
from benchmarks._timing import QUICK, Section, measure, show
from treekit import optax, training

SIZES = (100, 400) if QUICK else (1_000, 16_000)  # leaves
LABELLED = 100 if QUICK else 4_000  # leaves of what is labelled

Calls = dict[str, Callable[[], Any]]


class Layer(NamedTuple):
    weight: Any
    bias: Any


def tree(leaves: int, value: float = 1.0) -> Any:
    """Layers of two small arrays."""
    x = jnp.full((2,), value)
    return {"layers": [Layer(x, x) for _ in range(leaves // 2)]}


def traced(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: jax.eval_shape(lambda *args: f(*args), *args)  # a new function, so that it is traced each time


def matrices(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, params)


ADAM = optax.adam(0.1)
OPTIMIZERS: dict[str, Any] = {
    "adam of plain Optax": plain.adam(0.1),
    "adam": ADAM,
    "selective_transform": optax.selective_transform(ADAM, freeze_mask=False),
    "masked": optax.masked(ADAM, matrices),
    "partition": optax.partition({"a": ADAM, "b": optax.sgd(0.1)}, tk.path_labels({"**.bias": "b"}, default="a")),
    "inject_hyperparams": optax.inject_hyperparams(optax.adamw)(0.1, mask=matrices),
    "MultiSteps": optax.MultiSteps(ADAM, 2),
    "apply_if_finite": optax.apply_if_finite(ADAM, 2),
    "params_ema": optax.chain(ADAM, training.params_ema(0.9)),
    "store_state": training.store_state(ADAM, jnp.bfloat16, rounding="stochastic"),
}


def calls(leaves: int) -> Calls:
    """Each call by name."""
    a, b = tree(leaves), tree(leaves, 2.0)
    mask = tk.path_mask("**.bias")(a)
    state = optax.inject_hyperparams(optax.adam)(0.1).init(a)
    averaged = training.params_ema(0.9).init(a)
    layers = range(leaves // 2)
    each: Calls = {
        "filter": lambda: tk.filter(a, mask),
        "partition, combine": lambda: tk.combine(*tk.partition(a, mask)),
        "resolve_spec": lambda: tk.resolve_spec(mask, a, is_spec_leaf=lambda x: isinstance(x, bool), name="mask"),
        "dtype_preserving_tree_map": lambda: tk.dtype_preserving_tree_map(lambda x: x, a),
        "path_mask": lambda: tk.path_mask("**.bias")(a),
        "path_labels, a row a layer": lambda: tk.path_labels({f"layers.{i}.**": "x" for i in layers}, default="y")(a),
        "trainable": lambda: tk.trainable(a),
        "tree_find": lambda: tk.tree_find(a, "**.bias"),
        "tree_at, a function": lambda: tk.tree_at(lambda t: t["layers"][3].bias, a, None),
        "tree_at, a pattern": lambda: tk.tree_at("**.bias", a, replace_fn=lambda x: x),
        "tree_diff, all values differ": lambda: tk.tree_diff(a, b, values=True),
        "tree_summary": lambda: tk.tree_summary(a),
        "to_state_dict": lambda: tk.to_state_dict(a),
        "graft": lambda: tk.graft(a, b),
        "graft, a state": lambda: tk.graft(state, state),
        "graft, a row a layer": lambda: tk.graft(
            a, b, rename={f"layers.{i}.weight": f"layers.{i}.weight" for i in layers}
        ),
        "get_hyperparams": lambda: training.get_hyperparams(state),
        "set_hyperparams": lambda: training.set_hyperparams(state, learning_rate=0.2),
        "get_params_ema": lambda: training.get_params_ema(averaged, a),
        "summary of sgd": lambda: training.summary(optax.sgd(0.1), a),
        "tree_stack, traced": traced(lambda x, y: tk.tree_stack([x, y]), a, b),
        "tree_unstack, traced": traced(tk.tree_unstack, a),
        "tree_ravel, traced": traced(lambda x: tk.tree_ravel(x)[0], a),
        "apply_gradients, traced": traced(
            lambda grads, state, params: training.apply_gradients(ADAM, grads, state, params),
            *(a, jax.eval_shape(ADAM.init, a), a),
        ),
    }
    for name, tx in OPTIMIZERS.items():
        each[f"{name}: init, traced"] = traced(tx.init, a)
        each[f"{name}: update, traced"] = traced(tx.update, a, jax.eval_shape(tx.init, a), a)
    return each


def labelled(library: Any, labels: int) -> Callable[[], Any]:
    """Trace the init of a `partition`, which shows the whole tree to each of its transformations."""
    kinds = {str(i): library.sgd(0.1, 0.9) for i in range(labels)}
    of_layers = [Layer(str(i % labels), str(i % labels)) for i in range(LABELLED // 2)]
    return traced(library.partition(kinds, {"layers": of_layers}).init, tree(LABELLED))


def seconds(calls: Calls) -> dict[str, float]:
    times = measure(calls, rounds=2, tries=1)
    return {name: min(times[name]) for name in times}


def sections() -> Iterator[Section]:
    few, many = (seconds(calls(leaves)) for leaves in SIZES)
    columns: dict[str, dict[str, str]] = {
        f"{leaves:,} leaves": {name: f"{1e3 * x:,.3g} ms" for name, x in found.items()}
        for leaves, found in zip(SIZES, (few, many), strict=True)
    }
    steps = math.log(SIZES[1] / SIZES[0])
    columns["exponent"] = {name: f"{math.log(many[name] / few[name]) / steps:.2f}" for name in few}
    yield Section("Growth with the number of leaves", "The time of a call.", columns)

    found = {
        name: seconds({str(i): labelled(o, i) for i in (5, 20)}) for name, o in (("treekit", optax), ("Optax", plain))
    }
    table = {name: {f"{i} labels": f"{x:.2f} s" for i, x in each.items()} for name, each in found.items()}
    yield Section("Labels of partition", f"The time to trace init on {LABELLED:,} leaves.", table)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "jax", "optax")
