"""How the time of each public function grows with the number of leaves: python -m benchmarks.growth

The exponent is that of a power law between the smallest and the largest tree: 1 is linear. What training calls in jit
is traced here, not run; everything else is called outside of jit. This prints the table of
benchmarks/results/growth.md.
"""

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax as plain

import treekit as tk
from benchmarks._timing import setting
from treekit import optax
from treekit._base.jax import untyped

SIZES = (1_000, 4_000, 16_000)  # leaves
LONGEST = 20.0  # seconds; a larger tree is left out if the one before took longer


class Layer(NamedTuple):
    weight: Any
    bias: Any


def tree(leaves: int, value: float = 1.0) -> Any:
    """Layers of two small arrays."""
    x = jnp.full((2,), value)
    return {"layers": [Layer(x, x) for _ in range(leaves // 2)]}


def rows(leaves: int, value: object) -> dict[str, Any]:
    """A table with a pattern for each layer."""
    return {f"layers.{i}.**": value for i in range(leaves // 2)}


def traced(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: jax.eval_shape(lambda *args: f(*args), *args)  # a new function, so that it is traced each time


def optimizers() -> dict[str, Any]:
    def matrices(params: Any) -> Any:
        return jax.tree.map(lambda x: x.ndim > 1, params)

    labels = tk.path_labels({"**.bias": "b"}, default="a")
    adam = optax.adam(0.1)
    return {
        "adam of plain Optax": plain.adam(0.1),
        "adam": adam,
        "filtered": optax.filtered(adam),
        "masked": optax.masked(adam, matrices),
        "partition": optax.partition({"a": adam, "b": optax.sgd(0.1)}, labels),
        "inject_hyperparams": optax.inject_hyperparams(optax.adamw)(0.1, mask=matrices),
        "MultiSteps": optax.MultiSteps(adam, 2),
        "apply_if_finite": optax.apply_if_finite(adam, 2),
        "params_ema": optax.chain(adam, optax.params_ema(0.9)),
        "dtype_preserving, 8 bits": optax.dtype_preserving(
            adam, state_dtype={"mu": jnp.int8, "nu": jnp.uint8}, rounding="stochastic"
        ),
    }


def calls(leaves: int) -> dict[str, Callable[[], Any]]:
    """Each call by name."""
    a, b = tree(leaves), tree(leaves, 2.0)
    mask = tk.path_mask("**.bias")(a)
    state = optax.inject_hyperparams(optax.adam)(0.1).init(a)
    averaged = optax.params_ema(0.9).init(a)
    eager: dict[str, Callable[[], Any]] = {
        "filter": lambda: tk.filter(a, mask),
        "partition, combine": lambda: tk.combine(*tk.partition(a, mask)),
        "resolve_spec": lambda: tk.resolve_spec(mask, a, is_spec_leaf=lambda x: isinstance(x, bool), name="mask"),
        "dtype_preserving_tree_map": lambda: tk.dtype_preserving_tree_map(lambda x: x, a),
        "path_mask": lambda: tk.path_mask("**.bias")(a),
        "path_labels, a row a layer": lambda: tk.path_labels(rows(leaves, "x"), default="y")(a),
        "trainable": lambda: tk.trainable(a),
        "tree_find": lambda: tk.tree_find(a, "**.bias"),
        "tree_at, a function": lambda: tk.tree_at(lambda t: t["layers"][3].bias, a, None),
        "tree_at, a pattern": lambda: tk.tree_at("**.bias", a, replace_fn=lambda x: x),
        "tree_diff": lambda: tk.tree_diff(a, a),
        "tree_diff, values": lambda: tk.tree_diff(a, b, values=True),
        "tree_summary": lambda: tk.tree_summary(a),
        "to_state_dict": lambda: tk.to_state_dict(a),
        "graft": lambda: tk.graft(a, b),
        "graft, a state": lambda: tk.graft(state, state),
        "graft, a row a layer": lambda: tk.graft(
            a, b, rename={f"layers.{i}.weight": f"layers.{i}.weight" for i in range(leaves // 2)}
        ),
        "get_hyperparams": lambda: optax.get_hyperparams(state),
        "set_hyperparams": lambda: optax.set_hyperparams(state, learning_rate=0.2),
        "get_ema": lambda: optax.get_ema(averaged, a),
        "summary of sgd": lambda: optax.summary(optax.sgd(0.1), a),
    }
    for name, tx in optimizers().items():
        eager[f"{name}: init, traced"] = traced(tx.init, a)
        shapes = jax.eval_shape(tx.init, a)
        eager[f"{name}: update, traced"] = traced(tx.update, a, shapes, a)
    adam: Any = optax.adam(0.1)
    eager["apply_gradients, traced"] = traced(
        lambda grads, state, params: optax.apply_gradients(adam, grads, state, params),
        *(a, jax.eval_shape(adam.init, a), a),
    )
    eager["tree_stack, traced"] = traced(lambda x, y: tk.tree_stack([x, y]), a, b)
    eager["tree_unstack, traced"] = traced(tk.tree_unstack, a)
    eager["tree_ravel, traced"] = traced(lambda x: tk.tree_ravel(x)[0], a)
    return eager


def with_many_labels(module: Any, leaves: int, labels: int) -> Callable[[], Any]:
    """Trace the init of a `partition`, which shows the whole tree to each of its transformations."""
    kinds = {str(i): module.sgd(0.1, 0.9) for i in range(labels)}
    params = tree(leaves)
    of_layers = [Layer(str(i % labels), str(i % labels)) for i in range(leaves // 2)]
    return traced(module.partition(kinds, {"layers": of_layers}).init, params)


def seconds(call: Callable[[], Any]) -> float:
    """Return the shorter time of two calls, after one that warms up; of one call, if it is long."""
    start = perf_counter()
    call()
    first = perf_counter() - start
    if first > LONGEST / 4:
        return first
    times: list[float] = []
    for _ in range(2):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    untyped.config.update("jax_platforms", "cpu")
    print(setting("treekit-jax", "jax", "optax"))
    print(f"| | {' | '.join(f'{n:,} leaves' for n in SIZES)} | exponent |\n|---|{'---|' * (len(SIZES) + 1)}")
    found: dict[str, list[float]] = {}
    for leaves in SIZES:
        for name, call in calls(leaves).items():
            before = found.setdefault(name, [])
            if not before or before[-1] * 4 < LONGEST:
                before.append(seconds(call))
    for name, times in found.items():
        exponent = math.log(times[-1] / times[0]) / math.log(SIZES[len(times) - 1] / SIZES[0])
        cells = [f"{1e3 * x:,.3g} ms" for x in times] + ["-"] * (len(SIZES) - len(times))
        print(f"| {name} | {' | '.join(cells)} | {exponent:.2f} |", flush=True)
    for labels in (5, 20):
        ours, theirs = (seconds(with_many_labels(module, 4_000, labels)) for module in (optax, plain))
        print(f"partition with {labels} labels, 4,000 leaves: {ours:.1f} s, {ours / theirs:.2f} of Optax's", flush=True)


if __name__ == "__main__":
    main()
