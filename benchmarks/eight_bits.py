"""Optimizer state in 8 bits: the loss against that of f32, and what happens where codes of 8 bits usually fail.

    python -m benchmarks.eight_bits            tables, and a picture in docs/ (half an hour)
    QUICK=1 python -m benchmarks.eight_bits    fewer steps, one seed, no picture

1. Adam's updates for a gradient of six decades in one array, after the gradient has fallen, and for no gradient.
2. An MLP on handwritten digits, and a transformer on the characters of Python's own library: the loss against f32's.
3. A transformer of 1.4 million params, with one seed.

"linear" is what the codes are not: integers of 8 bits times a scale for each block of 128, rounded to nearest.
"""

import itertools
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax as plain_optax

from benchmarks._page import Section, show
from benchmarks._timing import QUICK
from benchmarks.mixed_precision import digits, loss_of, mlp
from treekit import optax
from treekit._codes import decode, encode

PICTURE = Path(__file__).parent.parent / "docs" / "eight_bits.png"
STEPS = 100 if QUICK else 2_000
SEEDS = 1 if QUICK else 3
MOMENTS = 20  # at which a loss is recorded
B2 = (0.999, 0.95)
BLOCK = 128

CODES = {"mu": jnp.int8, "nu": jnp.uint8}
Hold = Callable[[Any], Any]
FORMATS: dict[str, Hold] = {
    "f32": optax.dtype_preserving,
    "int8, uint8": lambda tx: optax.dtype_preserving(tx, state_dtype=CODES, rounding="stochastic"),
    "int8, bf16": lambda tx: optax.dtype_preserving(
        tx, state_dtype={"mu": jnp.int8, "nu": jnp.bfloat16}, rounding="stochastic"
    ),
    "bf16": lambda tx: optax.dtype_preserving(tx, state_dtype=jnp.bfloat16, rounding="stochastic"),
    "linear": lambda tx: linear(tx),
}


def linear(tx: Any) -> Any:
    """A transformation whose moments are rounded as integers of 8 bits times the largest number of each block."""

    def rounded(x: Any, levels: int) -> Any:
        if x.size < 4096:
            return x
        blocks = x.reshape(-1, BLOCK)
        scale = jnp.abs(blocks).max(-1, keepdims=True) / levels
        return (jnp.round(blocks / jnp.where(scale == 0, 1, scale)) * scale).reshape(x.shape)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = tx.update(updates, state, params)
        adam = state[0]
        mu, nu = (jax.tree.map(lambda x, n=n: rounded(x, n), y) for n, y in ((127, adam.mu), (255, adam.nu)))
        return updates, (adam._replace(mu=mu, nu=nu), *state[1:])

    return plain_optax.GradientTransformation(tx.init, update)


def to_nearest(tx: Any) -> Any:
    """The same codes, rounded to nearest, which `dtype_preserving` refuses."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = tx.update(updates, state, params)
        adam = state[0]
        mu, nu = (decode(encode(x, dtype)) for x, dtype in ((adam.mu, jnp.int8), (adam.nu, jnp.uint8)))
        return updates, (adam._replace(mu=mu, nu=nu), *state[1:])

    return plain_optax.GradientTransformation(tx.init, update)


# --- 1. Where codes usually fail --------------------------------------------------------------------------------------

SHAPE = (64, 64)
RATE = 1e-3


def sizes(hold: Hold, scales: Mapping[int, Any]) -> Any:
    """The root mean square of the last updates, and the largest of all, both divided by the rate.

    Args:
        hold: how state is stored.
        scales: numbers of steps, and the size of the gradients in them.
    """
    tx = hold(plain_optax.adam(RATE))
    params = jnp.zeros(SHAPE)

    def step(carry: Any, key: Any) -> Any:
        state, scale = carry
        grads = scale * jax.random.normal(key, SHAPE)
        updates, state = tx.update(grads, state, params)
        return (state, scale), (jnp.abs(updates).max(), jnp.sqrt(jnp.mean(updates**2)))

    state, out = tx.init(params), []
    for seed, (steps, scale) in enumerate(scales.items()):
        keys = jax.random.split(jax.random.key(seed), steps)
        (state, _), found = jax.jit(lambda state, scale, keys: jax.lax.scan(step, (state, scale), keys))(
            state, jnp.broadcast_to(scale, SHAPE), keys
        )
        out.append(np.asarray(found) / RATE)
    largest = max(found[0].max() for found in out)
    return float(np.sqrt(np.mean(out[-1][1][-100:] ** 2))), float(largest)


def edges() -> Section:
    """Adam's updates, in units of the rate."""
    decades = jnp.logspace(-6, 0, 64)
    before, after = (100, 200) if QUICK else (1_000, 3_000)
    columns: dict[str, dict[str, str]] = {
        title: {} for title in ("largest, six decades in a row", "after a fall by 100, to f32's", "no gradient")
    }
    formats = {**FORMATS, "int8, uint8, to nearest": to_nearest}
    fallen = {name: sizes(hold, {before: 1.0, after: 0.01})[0] for name, hold in formats.items()}
    for name, hold in formats.items():
        found = sizes(hold, {before: decades})[1], fallen[name] / fallen["f32"], sizes(hold, {100: 0.0})[1]
        for column, figure in zip(columns.values(), found, strict=True):
            column[name] = f"{figure:.3g}"
    text = (
        f"Adam's updates divided by the rate. The largest of {before:,} steps with gradients of six decades in each "
        f"row; the root mean square of the last of {after:,} steps after {before:,} with gradients 100 times as large, "
        "divided by that of f32; the largest without gradients."
    )
    return Section("Eight bits: updates", text, columns)


# --- 2. Training ------------------------------------------------------------------------------------------------------

Loss = Callable[[Any, Any], Any]  # of params, and of a key or None for a fixed batch


def digits_mlp(key: Any) -> tuple[Any, Loss, Loss]:
    """The params, the loss of a random batch, and the loss of all images."""
    images, labels = digits()

    def batch_loss(params: Any, key: Any) -> Any:
        chosen = jax.random.randint(key, (128,), 0, len(labels))
        return loss_of(params, images[chosen], labels[chosen])

    return mlp(key), batch_loss, lambda params, _: loss_of(params, images, labels)


WIDTH, LAYERS, LENGTH, BATCH, HEADS = 64, 2, 64, 16, 4


def corpus() -> np.ndarray:
    """Two million characters of Python's own library, as numbers below 128."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:2_000_000]
    return np.frombuffer(text.encode("ascii", errors="replace"), np.uint8).astype(np.int32) % 128


def transformer(key: Any, width: int = WIDTH, layers: int = LAYERS) -> tuple[Any, Loss, Loss]:
    """The params, the loss of random pieces of the text, and that of fixed pieces of the last tenth, held out."""
    text = jnp.asarray(corpus())
    end = len(text) * 9 // 10
    params = init_transformer(key, width, layers)

    def loss_at(params: Any, starts: Any) -> Any:
        pieces = text[starts[:, None] + jnp.arange(LENGTH + 1)]
        logits = predict(params, pieces[:, :-1])
        return plain_optax.softmax_cross_entropy_with_integer_labels(logits, pieces[:, 1:]).mean()

    def batch_loss(params: Any, key: Any) -> Any:
        return loss_at(params, jax.random.randint(key, (BATCH,), 0, end - LENGTH - 1))

    held_out = jnp.linspace(end, len(text) - LENGTH - 2, 128).astype(int)
    return params, batch_loss, lambda params, _: loss_at(params, held_out)


def init_transformer(key: Any, width: int, layers: int) -> Any:
    keys = iter(jax.random.split(key, 3 + 4 * layers))

    def matrix(n: int, m: int) -> Any:
        return jax.random.normal(next(keys), (n, m)) * n**-0.5

    def block() -> Any:
        ends = {"in": matrix(width, 4 * width), "out": matrix(4 * width, width) / layers}
        return {"qkv": matrix(width, 3 * width), "mix": matrix(width, width) / layers, **ends, "scale": jnp.ones(width)}

    position = 0.02 * jax.random.normal(next(keys), (LENGTH, width))
    embed = 0.02 * jax.random.normal(next(keys), (128, width))
    blocks = [block() for _ in range(layers)]
    return {"embed": embed, "position": position, "blocks": blocks, "head": matrix(width, 128)}


def predict(params: Any, tokens: Any) -> Any:
    """The logits of the next characters."""
    x = params["embed"][tokens] + params["position"]
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    for block in params["blocks"]:
        q, k, v = (y.reshape(*y.shape[:-1], HEADS, -1) for y in jnp.split(normed(x) @ block["qkv"], 3, -1))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        x = x + jnp.einsum("bhlm,bmhd->blhd", weights, v).reshape(x.shape) @ block["mix"]
        x = x + jax.nn.gelu(normed(x) * block["scale"] @ block["in"]) @ block["out"]
    return normed(x) @ params["head"]


def normed(x: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def large_transformer(key: Any) -> tuple[Any, Loss, Loss]:
    """One of 1.4 million params."""
    return transformer(key, width=192, layers=3)


TASKS: dict[str, tuple[Callable[[Any], tuple[Any, Loss, Loss]], float]] = {  # and the learning rate
    "digits": (digits_mlp, 1e-3),
    "transformer": (transformer, 2e-3),
}
LARGE = {"large transformer": (large_transformer, 1e-3)}
LARGE_STEPS = 20 if QUICK else 1_200


def train(task: str, hold: Hold, b2: float, seed: int, steps: int = STEPS) -> np.ndarray:
    """The loss at some moments: of all images, or held out."""
    make, rate = {**TASKS, **LARGE}[task]
    params, batch_loss, final_loss = make(jax.random.key(seed))
    decay = plain_optax.warmup_cosine_decay_schedule(0, rate, steps // 20, steps)
    tx = hold(plain_optax.adamw(decay, b2=b2, weight_decay=1e-4))

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        grads = jax.grad(batch_loss)(params, key)
        updates, state = tx.update(grads, state, params)
        return (plain_optax.apply_updates(params, updates), state), None

    @jax.jit
    def many(carry: Any, keys: Any) -> Any:
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, final_loss(carry[0], None)

    carry = params, tx.init(params)
    losses = []
    for keys in jax.random.split(jax.random.key(1_000 + seed), (MOMENTS, steps // MOMENTS)):
        carry, loss = many(carry, keys)
        losses.append(float(loss))
    return np.asarray(losses)


def training() -> Iterator[Section]:
    """The last loss of each format, divided by that of f32 for the same seed; and a picture of how it went."""
    curves: dict[tuple[str, float, str], np.ndarray] = {}
    for task, b2 in itertools.product(TASKS, B2):
        columns: dict[str, dict[str, str]] = {title: {} for title in ("loss", "to f32: mean", "worst")}
        for name, hold in FORMATS.items():
            runs = np.stack([train(task, hold, b2, seed) for seed in range(SEEDS)])
            curves[task, b2, name] = runs
            ends = runs[:, -1]
            ratios = ends / curves[task, b2, "f32"][:, -1]
            for column, figure in zip(columns.values(), (ends.mean(), ratios.mean(), ratios.max()), strict=True):
                column[name] = f"{figure:.4f}"
            print(task, b2, name, ends, ratios, flush=True)
        kind = "on all images" if task == "digits" else "held out"
        text = f"The last loss ({kind}) after {STEPS:,} steps of adamw, b2={b2}; mean and worst of {SEEDS} seeds."
        yield Section(f"Eight bits: {task}, b2={b2}", text, columns)
    if not QUICK:
        draw(curves)


def large() -> Section:
    """The last loss of f32 and of codes, for one seed."""
    ends = {name: train("large transformer", FORMATS[name], 0.999, 0, LARGE_STEPS)[-1] for name in list(FORMATS)[:3]}
    size = sum(x.size for x in jax.tree.leaves(large_transformer(jax.random.key(0))[0]))
    columns = {
        "loss": {name: f"{end:.4f}" for name, end in ends.items()},
        "to f32": {name: f"{end / ends['f32']:.4f}" for name, end in ends.items()},
    }
    text = f"A transformer of {size:,} params: the last loss, held out, after {LARGE_STEPS:,} steps, one seed."
    return Section("Eight bits: a larger transformer", text, columns)


def draw(curves: dict[tuple[str, float, str], np.ndarray]) -> None:
    """The loss for b2 = .999: a line for the mean, a band from the lowest to the highest seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        colors = ("black", "tab:blue", "tab:green", "tab:orange", "tab:red")
        for color, style, name in zip(colors, ("-", "--", ":", "-.", "-"), FORMATS, strict=True):
            losses = curves[task, B2[0], name]
            steps = np.arange(1, MOMENTS + 1) * (STEPS // MOMENTS)
            axes.fill_between(steps, losses.min(0), losses.max(0), color=color, alpha=0.2, linewidth=0)
            axes.plot(steps, losses.mean(0), style, color=color, label=name)
        best = min(losses.min() for (of, _, _), losses in curves.items() if of == task)
        first = curves[task, B2[0], "f32"][:, 1].mean()
        axes.set(xlabel="steps", ylabel="loss", title=task, ylim=(best - 0.05 * (first - best), first * 1.3))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, title="mu, nu")
    figure.savefig(PICTURE, dpi=110)


def sections() -> Iterator[Section]:
    yield edges()
    yield from training()
    yield large()


if __name__ == "__main__":
    show(sections(), "jax", "optax")
