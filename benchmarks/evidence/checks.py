"""What check_transformation finds in Optax's own transformations and in ours, and check_pytree in Equinox's layers.

Run `python -m benchmarks.evidence.checks` to write docs/checks.md again (about ten minutes); it says its progress on
stderr. With QUICK=1 it takes f32 params only, and prints the page instead.
"""

import datetime
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks._timing import QUICK, setting
from treekit import optax as tko
from treekit.check._transformation_laws import transformation_laws
from treekit.testing import check_pytree

clear_caches: Callable[[], None] = jax.clear_caches  # which has no types
PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
RATE = {"learning_rate": 1e-2}

# The aliases of optax and optax.contrib, and what they need besides a learning rate. A library is `optax` or ours.
ALIASES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam "
        "nadamw noisy_sgd novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd "
        "signum sm3 yogi".split(),
        RATE,
    ),
    "lbfgs": {},
    "polyak_sgd": {},
}
CONTRIB: dict[str, dict[str, Any]] = {
    **dict.fromkeys("acprop ademamix adopt galore madgrad muon simplified_ademamix".split(), RATE),
    **{name: {} for name in "dadapt_adamw dog dowg momo momo_adam prodigy".split()},
    **{name: {} for name in "schedule_free_adamw schedule_free_sgd".split()},
}


def transformations(library: Any) -> Iterator[tuple[str, Any]]:
    """Each alias by name, made by a library."""
    for name, arguments in ALIASES.items():
        yield name, getattr(library, name)(**arguments)
    for name, arguments in CONTRIB.items():
        yield f"contrib.{name}", getattr(library.contrib, name)(**arguments)


def params_of(dtype: Any) -> dict[str, Any]:
    """A matrix and a vector."""
    return {"w": jnp.linspace(-1, 1, 12).reshape(3, 4).astype(dtype), "b": jnp.linspace(0.5, 1, 4).astype(dtype)}


def model() -> Any:
    """A raw Equinox model, its activation function among its leaves."""
    return eqx.nn.MLP(2, 1, 4, depth=1, key=jax.random.key(0))


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "f32": lambda: (params_of(jnp.float32), None),
    "bf16": lambda: (params_of(jnp.bfloat16), None),
    "bf16, f32 gradients": lambda: (params_of(jnp.bfloat16), params_of(jnp.float32)),
    "a raw model": lambda: (model(), None),
}


def value_fn(params: Any) -> jax.Array:
    """A loss for those that search along a line."""
    arrays = [x for x in jax.tree.leaves(params) if eqx.is_inexact_array(x)]
    total: jax.Array = jnp.float32(0) + sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in arrays)
    return total


def laws_broken(tx: Any, kind: str) -> list[str]:
    """The laws that a transformation breaks on one kind of params."""
    params, grads = KINDS[kind]()
    gradient = grads if grads is not None else jax.tree.map(_one_or_none, params)
    extra = {"value": value_fn(params), "grad": gradient, "value_fn": value_fn}
    takes_extra = isinstance(tx, optax.GradientTransformationExtraArgs)
    return [broken.law for broken in transformation_laws(tx, params, grads, extra if takes_extra else {})]


def _one_or_none(x: Any) -> Any:
    return jnp.ones_like(x) if eqx.is_inexact_array(x) else None


if QUICK:
    KINDS = {"f32": KINDS["f32"]}


LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "optax": lambda tx: tx,
    "treekit.optax": lambda tx: tx,
    "dtype_preserving(tx, state_dtype=f32)": lambda tx: tko.dtype_preserving(tx, state_dtype=jnp.float32),
    'dtype_preserving(tx, rounding="stochastic")': lambda tx: tko.dtype_preserving(tx, rounding="stochastic"),
}


def found() -> Iterator[tuple[str, str, str, list[str]]]:
    """Library, kind of params, alias, and the laws that it breaks there."""
    for library, wrap in LIBRARIES.items():
        for kind in KINDS:
            if library.startswith("dtype") and not kind.startswith("bf16"):
                continue
            print(f"{library}, {kind}", file=sys.stderr, flush=True)
            for name, tx in transformations(optax if library == "optax" else tko):
                yield library, kind, name, laws_broken(wrap(tx), kind)
            clear_caches()


def layers() -> dict[str, Any]:
    """One of each of Equinox's layers."""
    key = jax.random.key(0)
    nn: Any = eqx.nn
    layers: dict[str, Any] = {
        "Identity": nn.Identity(),
        "Lambda": nn.Lambda(jax.nn.relu),
        "Dropout": nn.Dropout(0.5),
        "Linear": nn.Linear(2, 3, key=key),
        "MLP": nn.MLP(2, 1, 4, depth=1, key=key),
        "Embedding": nn.Embedding(4, 3, key=key),
        "RotaryPositionalEmbedding": nn.RotaryPositionalEmbedding(4),
        "MultiheadAttention": nn.MultiheadAttention(2, 4, key=key),
        "GRUCell": nn.GRUCell(2, 3, key=key),
        "LSTMCell": nn.LSTMCell(2, 3, key=key),
        "LayerNorm": nn.LayerNorm(3),
        "RMSNorm": nn.RMSNorm(3),
        "GroupNorm": nn.GroupNorm(2, 4),
        "BatchNorm": nn.BatchNorm(3, "batch", mode="ema"),
        "SpectralNorm": nn.SpectralNorm(nn.Linear(2, 3, key=key), "weight", key=key),
        "WeightNorm": nn.WeightNorm(nn.Linear(2, 3, key=key)),
        "PReLU": nn.PReLU(),
        "StateIndex": nn.StateIndex(jnp.ones(2)),
        "Sequential": nn.Sequential([nn.Linear(2, 3, key=key), nn.Lambda(jax.nn.relu)]),
    }
    for n in (1, 2, 3):
        layers |= {
            f"Conv{n}d": getattr(nn, f"Conv{n}d")(1, 2, 3, key=key),
            f"ConvTranspose{n}d": getattr(nn, f"ConvTranspose{n}d")(1, 2, 3, key=key),
            f"AvgPool{n}d": getattr(nn, f"AvgPool{n}d")(2),
            f"MaxPool{n}d": getattr(nn, f"MaxPool{n}d")(2),
            f"AdaptiveAvgPool{n}d": getattr(nn, f"AdaptiveAvgPool{n}d")(2),
            f"AdaptiveMaxPool{n}d": getattr(nn, f"AdaptiveMaxPool{n}d")(2),
        }
    return layers


def layers_broken() -> dict[str, str]:
    """What check_pytree says of each layer, or "" where it finds nothing."""
    said: dict[str, str] = {}
    for name, layer in layers().items():
        try:
            check_pytree(layer)
            said[name] = ""
        except AssertionError as error:
            said[name] = str(error)
    return said


# Read it against the figures after each run.
CONCLUSION = """
For params and gradients in f32, 40 of 45 optimizers of Optax hold all laws of `check_transformation`. With f32
gradients for bf16 params, 6 do; on a raw model, 4 do, and 39 of `treekit.optax`. The other 6 are `galore`, and 5 whose
first state shares buffers with the params. In bf16, nearly half of all optimizers have a second moment that cannot
decay, in both libraries, unless you wrap them in `dtype_preserving` with `state_dtype` or `rounding`.
"""


def page() -> str:
    """docs/checks.md."""
    rows = list(found())
    count = len(ALIASES) + len(CONTRIB)
    lines = [
        "# What the checks find",
        "",
        *CONCLUSION.strip().splitlines(),
        "",
        f"Written by `python -m benchmarks.evidence.checks` on {datetime.date.today()}: "
        f"{setting('optax', 'equinox', 'jax')}.",
        "",
        f"## check_transformation on {count} aliases of Optax",
        "",
        "The number of aliases that hold all laws, by kind of params, and below it each law with those that break it.",
        "The rows of `treekit.optax` are the same aliases from there, and the last two rows are those, wrapped.",
        "",
        "| library | " + " | ".join(KINDS) + " |",
        "|---|" + "---|" * len(KINDS),
    ]
    for library in LIBRARIES:
        cells = [
            [broken for found_library, found_kind, _, broken in rows if (found_library, found_kind) == (library, kind)]
            for kind in KINDS
        ]
        figures = [f"{sum(not broken for broken in cell)} of {len(cell)}" if cell else "" for cell in cells]
        lines.append(f"| `{library}` | " + " | ".join(figures) + " |")
    for library in LIBRARIES:
        for kind in KINDS:
            by_law: dict[str, list[str]] = {}
            for found_library, found_kind, name, broken in rows:
                if (found_library, found_kind) == (library, kind):
                    for law in broken:
                        by_law.setdefault(law, []).append(name)
            if by_law:
                lines += ["", f"### `{library}`, {kind}", "", "| law | broken by |", "|---|---|"]
                lines += [f"| {law} | {', '.join(names)} |" for law, names in by_law.items()]
    said = layers_broken()
    lines += ["", f"## check_pytree on {len(said)} layers of Equinox", ""]
    clean = [name for name, text in said.items() if not text]
    lines.append(f"{len(clean)} hold all laws: {', '.join(clean)}.")
    for name, text in said.items():
        if text:
            lines += ["", f"`{name}`:", "", "```text", *text.splitlines(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optax's casts of f64, Equinox's deprecations
        text = page()
    if QUICK:
        print(text)
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
