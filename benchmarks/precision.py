"""Training in 16 bits: the loss compared with that of f32.

    python -m benchmarks.precision            about half an hour
    QUICK=1 python -m benchmarks.precision    fewer steps, one seed

1. An MLP on handwritten digits with adamw: params in f32 or bf16, and the state in 32 or 16 bits.
2. Transformers on the characters of Python's own library: params in f32, and the state in 32 or 16 bits.

What single updates do is in tests: tests/training/test_store.py, and the laws of treekit.testing.
"""

import functools
import itertools
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax as plain_optax
from sklearn.datasets import load_digits

from benchmarks._timing import QUICK, Section, show
from treekit import optax, training

SEEDS = 1 if QUICK else 3


class Precision(NamedTuple):
    """How a model is trained: the dtype of its params, how its optimizer's state is held, and how both are rounded."""

    dtype: Any
    hold: Callable[[Any], Any]
    rounds_params: bool = False


def precision(dtype: Any, *, state: Any = None, rounds_params: bool = False, **options: Any) -> Precision:
    return Precision(dtype, lambda tx: training.store_state(tx, state, **options), rounds_params)


F32 = precision(jnp.float32)
IN_16_BITS = {
    "f32": F32,
    "bf16, nearest": precision(jnp.bfloat16),
    "bf16, state in f32": precision(jnp.bfloat16, state=jnp.float32),
    "bf16, stochastic": precision(jnp.bfloat16, rounding="stochastic", rounds_params=True),
}
STATE_IN_16_BITS = {
    "f32": F32,
    "bf16": precision(jnp.float32, rounding="stochastic", state=jnp.bfloat16),
}


# --- What is trained --------------------------------------------------------------------------------------------------

Loss = Callable[[Any, Any], Any]  # of params, and of a key for a random batch, or None for what the tables have
Model = tuple[Any, Loss]  # params, and the loss


def digits(key: Any) -> Model:
    """An MLP in f32. All 1,797 images count in the end, since it is the training that is looked at."""
    data: Any = load_digits(return_X_y=True)
    images, labels = jnp.asarray(data[0] / 16, jnp.float32), jnp.asarray(data[1])
    shapes = list(itertools.pairwise((64, 256, 256, 10)))
    params = [
        {"w": jax.random.normal(k, shape) * (2 / shape[0]) ** 0.5, "b": jnp.zeros(shape[1])}
        for k, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True)
    ]

    def loss(params: Any, key: Any) -> Any:
        """Cross entropy with smoothed labels, which has no end at zero; in f32, whatever the params are in."""
        chosen = slice(None) if key is None else jax.random.randint(key, (128,), 0, len(labels))
        *hidden, last = jax.tree.map(lambda x: x.astype(jnp.float32), params)
        x = images[chosen]
        for layer in hidden:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        wanted = plain_optax.smooth_labels(jax.nn.one_hot(labels[chosen], 10), 0.1)
        return plain_optax.softmax_cross_entropy(x @ last["w"] + last["b"], wanted).mean()

    return params, loss


LENGTH, BATCH, HEADS = 64, 16, 4


def transformer(key: Any, width: int = 64, layers: int = 2) -> Model:
    """The loss is that of random pieces of the text, and of fixed pieces of the last tenth, held out."""
    text = jnp.asarray(corpus())
    end = len(text) * 9 // 10
    keys = iter(jax.random.split(key, 3 + 4 * layers))

    def matrix(n: int, m: int, scale: float) -> Any:
        return scale * jax.random.normal(next(keys), (n, m))

    def block() -> Any:
        ends = {
            "in": matrix(width, 4 * width, width**-0.5),
            "out": matrix(4 * width, width, (4 * width) ** -0.5 / layers),
        }
        qkv, mix = matrix(width, 3 * width, width**-0.5), matrix(width, width, width**-0.5 / layers)
        return {"qkv": qkv, "mix": mix, **ends, "scale": jnp.ones(width)}

    params = {
        "position": matrix(LENGTH, width, 0.02),
        "embed": matrix(128, width, 0.02),
        "blocks": [block() for _ in range(layers)],
        "head": matrix(width, 128, width**-0.5),
    }

    def loss(params: Any, key: Any) -> Any:
        if key is None:
            starts = jnp.linspace(end, len(text) - LENGTH - 2, 128).astype(int)
        else:
            starts = jax.random.randint(key, (BATCH,), 0, end - LENGTH - 1)
        pieces = text[starts[:, None] + jnp.arange(LENGTH + 1)]
        logits = predict(params, pieces[:, :-1])
        return plain_optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:]).mean()

    return params, loss


def corpus() -> np.ndarray:
    """Two million characters of Python's own library, as numbers below 128."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:2_000_000]
    return np.frombuffer(text.encode("ascii", errors="replace"), np.uint8).astype(np.int32) % 128


def predict(params: Any, tokens: Any) -> Any:
    """The logits of the next characters."""

    def normed(x: Any) -> Any:
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)

    x = params["embed"][tokens] + params["position"]
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for block in params["blocks"]:
        q, k, v = (y.reshape(*y.shape[:-1], HEADS, -1) for y in jnp.split(normed(x) @ block["qkv"], 3, -1))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        x = x + jnp.einsum("bhlm,bmhd->blhd", weights, v).reshape(x.shape) @ block["mix"]
        x = x + jax.nn.gelu(normed(x) * block["scale"] @ block["in"]) @ block["out"]
    return normed(x) @ params["head"]


# --- Training ---------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A model, and how it is trained with adamw.

    Attributes:
        make: returns the model from a key.
        precisions: those that are compared.
        steps: how many.
        rate: the learning rate, a schedule.
        b2: of adamw.
        seeds: how many.
    """

    make: Callable[[Any], Model]
    precisions: Mapping[str, Precision]
    steps: int
    rate: Any
    b2: float = 0.999
    seeds: int = SEEDS


def state_in_16_bits(make: Callable[[Any], Model], rate: float, steps: int, b2: float, seeds: int = SEEDS) -> Task:
    warmed_up = plain_optax.warmup_cosine_decay_schedule(0, rate, steps // 20, steps)
    return Task(make, STATE_IN_16_BITS, steps, warmed_up, b2, seeds)


SHORT, LONG = (100, 100) if QUICK else (2_000, 10_000)
LARGE = functools.partial(transformer, width=192, layers=3)
TASKS = {
    "digits, 16 bits": Task(digits, IN_16_BITS, LONG, plain_optax.cosine_decay_schedule(2e-4, LONG)),
    "digits, state in 16 bits, b2=0.999": state_in_16_bits(digits, 1e-3, SHORT, 0.999),
    "digits, state in 16 bits, b2=0.95": state_in_16_bits(digits, 1e-3, SHORT, 0.95),
    "transformer, state in 16 bits, b2=0.999": state_in_16_bits(transformer, 2e-3, SHORT, 0.999),
    "transformer, state in 16 bits, b2=0.95": state_in_16_bits(transformer, 2e-3, SHORT, 0.95),
    "a larger transformer, state in 16 bits": state_in_16_bits(LARGE, 1e-3, 20 if QUICK else 1_200, 0.999, seeds=1),
}


def train(task: Task, precision: Precision, seed: int) -> tuple[float, float]:
    """The last loss, and the bytes of params and state for each parameter."""
    params, loss = task.make(jax.random.key(seed))
    params = jax.tree.map(lambda x: x.astype(precision.dtype), params)
    tx = precision.hold(plain_optax.adamw(task.rate, b2=task.b2, weight_decay=1e-4))

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        params, state = carry
        of_batch, of_rounding = jax.random.split(key)
        updates, state = tx.update(jax.grad(loss)(params, of_batch), state, params)
        return (optax.apply_updates(params, updates, key=of_rounding if precision.rounds_params else None), state), None

    carry = params, tx.init(params)
    held = sum(x.nbytes for x in jax.tree.leaves(carry)) / sum(x.size for x in jax.tree.leaves(params))
    keys = jax.random.split(jax.random.key(1_000 + seed), task.steps)
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))(carry)
    return float(jax.jit(loss)(params, None)), held


def sections() -> Iterator[Section]:
    """The last loss of each precision, also divided by that of f32 for the same seed."""
    for title, task in TASKS.items():
        of_f32 = np.ones(task.seeds)
        columns: dict[str, dict[str, str]] = {x: {} for x in ("mean", "lowest", "highest", "to f32", "worst", "bytes")}
        for name, precision in task.precisions.items():
            losses, held = zip(*(train(task, precision, seed) for seed in range(task.seeds)), strict=True)
            if precision is F32:
                of_f32 = np.asarray(losses)
            ratios = losses / of_f32
            figures = (np.mean(losses), min(losses), max(losses), ratios.mean(), ratios.max(), held[0])
            for column, figure in zip(columns.values(), figures, strict=True):
                column[name] = f"{figure:.5g}"
        data = "all images" if task.make is digits else "text that was held out"
        text = (
            f"The loss on {data} after {task.steps:,} steps of adamw, seeds: {task.seeds}; divided by that of f32, "
            "the mean and the worst; and the bytes of params and state for each parameter."
        )
        yield Section(f"Training: {title}", text, columns)


if __name__ == "__main__":
    show(sections(), "treekit-jax", "jax", "optax")
