"""Training in bf16: where f32 ends, where rounding to nearest ends, and where stochastic rounding does.

    python -m benchmarks.mixed_precision            three tables, and a picture in docs/ (minutes)
    QUICK=1 python -m benchmarks.mixed_precision    fewer steps, one seed, no picture

1. The second moment after gradients of 1, then of 0.01: does it decay?
2. An MLP on handwritten digits with adamw: the loss where training ends, and the bytes held for each parameter.
3. The time of an AdamW step of 20 million parameters in bf16.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax as plain_optax
from sklearn.datasets import load_digits

from benchmarks._page import Section, show
from benchmarks._timing import QUICK, Ratio, measure
from treekit import optax

PICTURE = Path(__file__).parent.parent / "docs" / "mixed_precision.png"
MOMENT_STEPS = (200, 500) if QUICK else (2_000, 5_000)
TRAIN_STEPS = 100 if QUICK else 10_000
SEEDS = 1 if QUICK else 3
RATE = 2e-4
BATCH = 128
STEP_SHAPE = (400 if QUICK else 4_000, 5_000)


class Precision(NamedTuple):
    """How a model is trained: the dtype of its params, how its optimizer's state is held, and how both are rounded."""

    dtype: Any
    hold: Callable[[Any], Any]
    rounds_params: bool = False


PRECISIONS = {
    "f32": Precision(jnp.float32, lambda tx: optax.filtered(tx)),
    "bf16, nearest": Precision(jnp.bfloat16, lambda tx: optax.dtype_preserving(tx)),
    "bf16, state in f32": Precision(jnp.bfloat16, lambda tx: optax.dtype_preserving(tx, state_dtype=jnp.float32)),
    "bf16, stochastic": Precision(
        jnp.bfloat16, lambda tx: optax.dtype_preserving(tx, rounding="stochastic"), rounds_params=True
    ),
}


# --- 1. The second moment ---------------------------------------------------------------------------------------------


def second_moment(tx: Any, dtype: Any) -> tuple[float, float]:
    """Its mean after gradients of 1, and after more of 0.01."""
    params = {"w": jnp.zeros((32, 32), dtype)}
    ones = {"w": jnp.ones((32, 32), jnp.float32)}

    def run(state: Any, gradient: float, steps: int) -> Any:
        def body(state: Any, _: None) -> tuple[Any, None]:
            return tx.update(jax.tree.map(lambda g: gradient * g, ones), state, params)[1], None

        return jax.jit(lambda state: jax.lax.scan(body, state, None, steps)[0])(state)

    def mean(state: Any) -> float:
        found = plain_optax.tree.get(state, "nu", plain_optax.tree.get(state, "v_row"))  # adafactor's, by rows
        return float(jax.tree.leaves(found)[0].astype(jnp.float32).mean())

    first = run(tx.init(params), 1.0, MOMENT_STEPS[0])
    return mean(first), mean(run(first, 0.01, MOMENT_STEPS[1]))


def moments() -> Section:
    """Each optimizer's second moment, twice."""
    names = ("adam",) if QUICK else ("adam", "radam", "amsgrad", "lamb")
    optimizers = {name: getattr(plain_optax, name)(1e-3) for name in names}
    # Its decay rises towards 1 with the count; offset, it is where it stands after 10,000 steps.
    optimizers["adafactor"] = plain_optax.adafactor(1e-3, min_dim_size_to_factor=8, decay_offset=-10_000)
    columns: dict[str, dict[str, str]] = {}
    for title, precision in PRECISIONS.items():
        ends = {name: second_moment(precision.hold(tx), precision.dtype) for name, tx in optimizers.items()}
        columns[title] = {name: f"{first:.3g}, {last:.3g}" for name, (first, last) in ends.items()}
    high, low = MOMENT_STEPS
    return Section(
        "The second moment in 16 bits",
        f"Its value after {high:,} gradients of 1, and after {low:,} more gradients of 0.01.",
        columns,
    )


# --- 2. Digits --------------------------------------------------------------------------------------------------------


def digits() -> tuple[jax.Array, jax.Array]:
    """The images, from 0 to 1, and the labels; all 1,797, since it is the training that is looked at."""
    images, labels = load_digits(return_X_y=True)
    return jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels)


def mlp(key: jax.Array, widths: tuple[int, ...] = (64, 256, 256, 10)) -> Any:
    """Weights and biases in f32."""
    pairs = list(itertools.pairwise(widths))
    keys = jax.random.split(key, len(pairs))
    return [
        {"w": jax.random.normal(k, pair) * (2 / pair[0]) ** 0.5, "b": jnp.zeros(pair[1])}
        for k, pair in zip(keys, pairs, strict=True)
    ]


def loss_of(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Cross entropy with smoothed labels, which has no end at zero; computed in f32, whatever the params are in."""
    *hidden, last = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    x = images
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    wanted = plain_optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.1)
    return plain_optax.softmax_cross_entropy(x @ last["w"] + last["b"], wanted).mean()


def train(precision: Precision, seed: int) -> tuple[np.ndarray, float]:
    """The loss over all images, at a hundred moments, and the bytes of params and state for each parameter."""
    images, labels = digits()
    decay = plain_optax.cosine_decay_schedule(RATE, TRAIN_STEPS)
    tx = precision.hold(plain_optax.adamw(decay, weight_decay=1e-4))
    params = jax.tree.map(lambda x: x.astype(precision.dtype), mlp(jax.random.key(seed)))
    state = tx.init(params)
    held = sum(x.nbytes for x in jax.tree.leaves((params, state)))
    size = sum(x.size for x in jax.tree.leaves(params))

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, state = carry
        chosen = jax.random.randint(jax.random.fold_in(key, 0), (BATCH,), 0, len(labels))
        grads = jax.grad(loss_of)(params, images[chosen], labels[chosen])
        updates, state = tx.update(grads, state, params)
        rounds = jax.random.fold_in(key, 1) if precision.rounds_params else None
        return (optax.apply_updates(params, updates, key=rounds), state), None

    def many(carry: Any, keys: jax.Array) -> tuple[Any, jax.Array]:
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, loss_of(carry[0], images, labels)

    keys = jax.random.split(jax.random.key(1_000 + seed), (100, TRAIN_STEPS // 100))
    _, losses = jax.jit(lambda carry, keys: jax.lax.scan(many, carry, keys))((params, state), keys)
    return np.asarray(losses), held / size


def training() -> Section:
    """Where training ends; and a picture of how it went."""
    curves: dict[str, np.ndarray] = {}
    columns: dict[str, dict[str, str]] = {title: {} for title in ("mean", "lowest", "highest", "to f32", "bytes each")}
    for name, precision in PRECISIONS.items():
        runs = [train(precision, seed) for seed in range(SEEDS)]
        curves[name] = np.stack([losses for losses, _ in runs])
        ends, base = curves[name][:, -1], curves["f32"][:, -1]
        figures = [f"{x:.5f}" for x in (ends.mean(), ends.min(), ends.max())]
        figures += [f"{100 * (ends.mean() / base.mean() - 1):+.2f} %", f"{runs[0][1]:.2f}"]
        for column, figure in zip(columns.values(), figures, strict=True):
            column[name] = figure
    if not QUICK:
        draw(curves)
    text = (
        f"An MLP on digits, with adamw: loss after {TRAIN_STEPS:,} steps, over {SEEDS} seeds, and bytes per parameter."
    )
    return Section("Training in 16 bits", text, columns)


def draw(curves: dict[str, np.ndarray]) -> None:
    """The loss of each precision: a line for the mean, a band from the lowest to the highest seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    steps = np.arange(1, 101) * (TRAIN_STEPS // 100)
    styles = {"f32": "-", "bf16, nearest": "-", "bf16, state in f32": "-.", "bf16, stochastic": "--"}
    for color, (name, losses) in zip(("black", "tab:red", "tab:orange", "tab:blue"), curves.items(), strict=True):
        axes.fill_between(steps, losses.min(0), losses.max(0), color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, losses.mean(0), styles[name], color=color, label=name)
    best = min(losses.min() for losses in curves.values())
    axes.set(
        xlabel="steps",
        ylabel="training loss",
        ylim=(best - 0.01, best + 0.15),
        title=f"MLP on digits, adamw: mean of {SEEDS} seeds, and their range",
    )
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.3))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


# --- 3. The cost ------------------------------------------------------------------------------------------------------


def stepper(hold: Callable[[Any], Any], rounds: bool, donate: bool) -> Callable[[], object]:
    """A call that takes one step, on arrays of its own."""
    tx = hold(plain_optax.adamw(1e-3))
    params, grads = (jnp.full(STEP_SHAPE, x, jnp.bfloat16) for x in (0.5, 0.01))
    carry = params, tx.init(params)
    key = jax.random.key(0)

    def step(params: Any, state: Any, grads: Any, key: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates, key=key if rounds else None), state

    jitted = jax.jit(step, donate_argnums=(0, 1) if donate else ())

    def call() -> object:
        nonlocal carry
        carry = jitted(*carry, grads, key)
        for x in jax.tree.leaves(carry):
            x.block_until_ready()
        return None

    return call


def in_f32(tx: Any) -> Any:
    """What rounding="stochastic" computes, rounded to nearest: bf16 state, widened for the update."""

    def wide(tree: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, tree)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        new_updates, new = tx.update(wide(updates), wide(state), wide(params))
        return new_updates, jax.tree.map(lambda x, old: x.astype(old.dtype), new, state)

    return optax.dtype_preserving(plain_optax.GradientTransformation(tx.init, update))


def cost() -> Section:
    """The time of a step, as a ratio to those that round to nearest."""
    columns: dict[str, dict[str, Ratio]] = {}
    for title, donate in (("donated", True), ("not donated", False)):
        calls = {
            "nearest, in bf16": stepper(optax.dtype_preserving, False, donate),
            "nearest, in f32": stepper(in_f32, False, donate),
            "state stochastic": stepper(PRECISIONS["bf16, stochastic"].hold, False, donate),
            "both stochastic": stepper(PRECISIONS["bf16, stochastic"].hold, True, donate),
            "params stochastic, state in f32": stepper(PRECISIONS["bf16, state in f32"].hold, True, donate),
        }
        times = measure(calls, rounds=4 if QUICK else 10)
        for base in ("nearest, in bf16", "nearest, in f32"):
            columns[f"{title} / {base}"] = {name: times.ratio(name, base) for name in calls}
    millions = STEP_SHAPE[0] * STEP_SHAPE[1] / 1e6
    return Section(
        "The cost of stochastic rounding",
        f"The time of a step of adamw on {millions:.0f} million bf16 params, divided by that of the column's name.",
        columns,
    )


def sections() -> Iterator[Section]:
    yield moments()
    yield training()
    yield cost()


if __name__ == "__main__":
    show(sections(), "jax", "optax")
