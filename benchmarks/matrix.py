"""Every optimizer, wrapped in every way, on every kind of params: do the laws hold? treekit beside plain Optax.

A cell is one (optimizer, wrapper, params); it is held when all laws of `broken_law` hold.

    python -m benchmarks.matrix             the whole matrix (hours on two cores)
    QUICK=1 python -m benchmarks.matrix     one cell in forty
"""

import dataclasses
import os
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import optax as plain_optax

import treekit as tk
import treekit.optax as treekit_optax
from treekit._check import LAWS, transformation_laws

Factory = Callable[[Any], Any]  # from the module, Optax's or ours, to a transformation

# Aliases that take a learning rate alone, or nothing.
_BY_LEARNING_RATE = (
    "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw "
    "noisy_sgd novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi"
)
_CONTRIB = (
    "acprop ademamix adopt dadapt_adamw dog dowg madgrad momo momo_adam muon prodigy schedule_free_adamw "
    "schedule_free_sgd simplified_ademamix galore"
)


def _alias(name: str, *args: Any, contrib: bool = False, **kwargs: Any) -> Factory:
    return lambda o: getattr(o.contrib if contrib else o, name)(*args, **kwargs)


class CountingState(NamedTuple):
    """State that is no array: Python numbers."""

    steps: int
    seen: bool
    rate: float


def _counting(o: Any) -> Any:
    def init(params: Any) -> CountingState:
        del params
        return CountingState(0, False, 0.5)

    def update(updates: Any, state: CountingState, params: Any = None) -> tuple[Any, CountingState]:
        del params
        halved = jax.tree.map(lambda g: g * state.rate, updates)
        return halved, CountingState(state.steps + 1, state.seen | True, state.rate * 0.9)

    tx = plain_optax.GradientTransformation(init, update)
    return tx if o is plain_optax else treekit_optax.dtype_preserving(tx)


def optimizers() -> dict[str, Factory]:
    """The optimizers, by name."""
    schedule = plain_optax.linear_schedule(1e-2, 1e-3, 10)
    out: dict[str, Factory] = {name: _alias(name, 1e-2) for name in _BY_LEARNING_RATE.split()}
    out |= {name: _alias(name, contrib=True) for name in _CONTRIB.split()}
    for name in ("acprop", "ademamix", "adopt", "madgrad", "muon", "galore", "simplified_ademamix"):
        out[name] = _alias(name, 1e-2, contrib=True)
    out |= {
        "sgd, momentum": _alias("sgd", 1e-2, momentum=0.9),
        "sgd, nesterov, schedule": _alias("sgd", schedule, momentum=0.9, nesterov=True),
        "adam, schedule": _alias("adam", schedule),
        "adam, mu_dtype": _alias("adam", 1e-2, mu_dtype=jnp.bfloat16),
        "zero_nans, adam": lambda o: o.chain(o.zero_nans(), o.adam(1e-2)),
        "clip_by_global_norm, adam": lambda o: o.chain(o.clip_by_global_norm(1.0), o.adam(1e-2)),
        "adaptive_grad_clip, sgd": lambda o: o.chain(o.adaptive_grad_clip(0.1), o.sgd(1e-2)),
        "add_noise, sgd": lambda o: o.chain(o.add_noise(0.01, 0.5, 0), o.sgd(1e-2)),
        "ema, sgd": lambda o: o.chain(o.ema(0.9), o.sgd(1e-2)),
        "apply_every, sgd": lambda o: o.chain(o.apply_every(2), o.sgd(1e-2)),
        "centralize, sgd": lambda o: o.chain(o.centralize(), o.sgd(1e-2)),
        "flatten, adam": lambda o: o.flatten(o.adam(1e-2)),
        "mechanize, sgd": lambda o: o.contrib.mechanize(o.sgd(1e-2)),
        "sgd, reduce_on_plateau": lambda o: o.chain(o.sgd(1e-2), o.contrib.reduce_on_plateau()),
        "polyak_sgd": lambda o: o.polyak_sgd(1e-2),
        "lbfgs": lambda o: o.lbfgs(),
        "lbfgs, no line search": lambda o: o.lbfgs(1e-2, linesearch=None),
        "sgd, backtracking": lambda o: o.chain(o.sgd(1.0), o.scale_by_backtracking_linesearch(5)),
        "state of Python numbers": _counting,
    }
    return out


def _all_true(params: Any) -> Any:
    return jax.tree.map(lambda _: True, params)


def _all_labelled(params: Any) -> Any:
    return jax.tree.map(lambda _: "a", params)


def wrappers() -> dict[str, Callable[[Any, Factory], Any]]:
    """Ways to wrap an optimizer, by name."""

    def plain(o: Any, make: Factory) -> Any:
        tx = make(o)
        return tx if o is plain_optax else o.dtype_preserving(o.filtered(tx))

    def masked(o: Any, make: Factory) -> Any:
        return o.masked(make(o), _all_true)

    def partition(o: Any, make: Factory) -> Any:
        return o.partition({"a": make(o), "b": o.set_to_zero()}, _all_labelled)

    def inject(o: Any, make: Factory) -> Any:
        def factory(rate: float) -> Any:
            return o.chain(o.masked(o.scale(rate), _all_true), make(o))

        return o.inject_hyperparams(factory)(0.5)

    def multi_steps(o: Any, make: Factory) -> Any:
        return o.MultiSteps(make(o), 2).gradient_transformation()

    def apply_if_finite(o: Any, make: Factory) -> Any:
        return o.apply_if_finite(make(o), 2)

    def nested(outer: Any, inner: Any) -> Any:
        return lambda o, make: outer(o, lambda o: inner(o, make))

    return {
        "plain": plain,
        "masked": masked,
        "partition": partition,
        "inject_hyperparams": inject,
        "MultiSteps": multi_steps,
        "apply_if_finite": apply_if_finite,
        "MultiSteps of masked": nested(multi_steps, masked),
        "inject of MultiSteps": nested(inject, multi_steps),
        "masked of masked": nested(masked, masked),
        "partition of apply_if_finite": nested(partition, apply_if_finite),
        "apply_if_finite of MultiSteps": nested(apply_if_finite, multi_steps),
    }


class Pair(NamedTuple):
    """Params in a named tuple."""

    w: Any
    b: Any


@tk.node
class Dense:
    """A node of treekit's, with a static part."""

    w: Any
    b: Any
    name: str = tk.field(static=True)


class Legacy:
    """A class that validates and preprocesses what it is given."""

    def __init__(self, w: Any, b: Any) -> None:
        if w.shape[-1] != b.shape[-1]:
            raise ValueError("w and b do not match")
        self.w = w * 2
        self.b = b * 2


tk.register_node(Legacy, data_fields=["w", "b"], meta_fields=[])


class Model(eqx.Module):
    """An Equinox model with a function, a string and a Python float among its leaves."""

    layer: eqx.nn.Linear
    activation: Callable[..., Any]
    dropout: eqx.nn.Dropout
    name: str

    def __call__(self, x: Any) -> Any:
        """As a layer does."""
        return self.activation(self.layer(x))


def _model(dtype: Any = jnp.float32) -> Model:
    layer = eqx.nn.Linear(3, 4, key=jax.random.key(0), dtype=dtype)
    return Model(layer, jax.nn.relu, eqx.nn.Dropout(0.5), "model")


class Params(NamedTuple):
    """A kind of params: the params, and gradients for them."""

    params: Any
    grads: Any
    x64: bool = False


def _leaves(w_dtype: Any, b_dtype: Any = None) -> tuple[jax.Array, jax.Array]:
    w, b = jnp.linspace(-1, 1, 12).reshape(3, 4), jnp.linspace(0.5, 1, 4)
    return w.astype(w_dtype), b.astype(b_dtype or w_dtype)


def _grads_like(params: Any, dtype: Any = None) -> Any:
    def grad(x: Any) -> Any:
        return jnp.asarray(x * 0.5 + 0.1, dtype or x.dtype) if eqx.is_inexact_array(x) else None

    return jax.tree.map(grad, params)


def kinds_of_params() -> dict[str, Callable[[], Params]]:
    """Kinds of params, by name; made when asked for, since some want x64."""

    def alike(make: Callable[[], Any], grad_dtype: Any = None, x64: bool = False) -> Callable[[], Params]:
        def made() -> Params:
            params = make()
            return Params(params, _grads_like(params, grad_dtype), x64)

        return made

    def dict_of(w: Any, b: Any = None) -> Callable[[], Any]:
        return lambda: dict(zip("wb", _leaves(w, b), strict=True))

    def nnx_state() -> Any:
        return flax.nnx.state(flax.nnx.Linear(3, 4, rngs=flax.nnx.Rngs(0)), flax.nnx.Param)

    def linen() -> Any:
        return flax.linen.Dense(4).init(jax.random.key(0), jnp.ones((1, 3)))

    f32, bf16 = jnp.float32, jnp.bfloat16
    return {
        "dict f32": alike(dict_of(f32)),
        "dict bf16": alike(dict_of(bf16)),
        "dict f16": alike(dict_of(jnp.float16)),
        "dict f64": alike(lambda: dict_of("float64")(), x64=True),
        "dict complex64": alike(dict_of(jnp.complex64)),
        "mixed bf16, f32": alike(dict_of(bf16, f32)),
        "bf16, f32 gradients": alike(dict_of(bf16), f32),
        "None leaves": alike(lambda: {**dict_of(f32)(), "n": None}),
        "empty subtrees": alike(lambda: {**dict_of(f32)(), "e": {}, "t": ()}),
        "bare array": alike(lambda: _leaves(f32)[0]),
        "named tuple": alike(lambda: Pair(*_leaves(f32))),
        "Equinox raw": alike(_model),
        "Equinox filtered": alike(lambda: eqx.filter(_model(), eqx.is_inexact_array)),
        "Equinox raw bf16": alike(lambda: _model(bf16)),
        "NNX state": alike(nnx_state),
        "Linen dict": alike(linen),
        "treekit node": alike(lambda: Dense(*_leaves(f32), name="d")),
        "legacy class": alike(lambda: Legacy(*_leaves(f32))),
        "ints and keys": alike(lambda: {**dict_of(f32)(), "i": jnp.arange(3), "k": jax.random.key(0)}),
    }


def broken_law(tx: Any, kind: Params, o: Any) -> str | None:
    """The first law that does not hold, or None."""
    params, grads = kind.params, kind.grads

    def value_fn(params: Any) -> Any:
        arrays: list[Any] = [x for x in jax.tree.leaves(params) if tk.is_inexact_array(x)]
        return jnp.float32(0) + sum(jnp.sum(jnp.abs(x) ** 2).astype(jnp.float32) for x in arrays)

    extra = {"value": value_fn(params), "grad": grads, "value_fn": value_fn}
    # That a moment can decay in 16 bits is a matter of `dtype_preserving`, not of the wrappers.
    laws = [name for name in LAWS if name != "moment"]
    for broken in transformation_laws(tx, params, grads, extra, laws=laws):
        return str(broken)

    def step(carry: Any, _: Any) -> tuple[Any, Any]:
        arrays, state = carry
        params = tk.combine(arrays, static)
        updates, state = tx.update(grads, state, params, **extra)
        return (tk.filter_arrays(o.apply_updates(params, updates)), state), None

    arrays, static = tk.partition(params)
    (new_arrays, state), _ = jax.lax.scan(step, (arrays, tx.init(params)), length=4)
    diff = tk.tree_diff(arrays, new_arrays, values=False)
    if diff:
        return f"params keep structure and dtypes: {diff}"
    for path, x in jax.tree_util.tree_leaves_with_path((new_arrays, state)):
        inexact = tk.is_inexact_array(x)
        # A line search holds inf until it knows better.
        if inexact and bool(jnp.isnan(jnp.asarray(x)).any()):
            return f"nothing is NaN: {jax.tree_util.keystr(path)}"
    return None


@dataclasses.dataclass(frozen=True)
class Cell:
    """What became of one cell."""

    optimizer: str
    wrapper: str
    params: str
    reason: str | None


def run_cell(
    o: Any, optimizer: Factory, wrapper: Callable[[Any, Factory], Any], make: Callable[[], Params]
) -> str | None:
    """The reason why a cell is not held, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return broken_law(wrapper(o, optimizer), make(), o)
    except Exception as error:  # any failure of the cell is a result
        return f"{type(error).__name__}: {error}"


def cells(o: Any, every: int = 1, wrapped: list[str] | None = None) -> Iterator[Cell]:
    """All cells of the matrix, or every so many-th."""
    count = 0
    for kind, make in kinds_of_params().items():
        with jax.enable_x64(kind == "dict f64"):
            for wrapper, wrap in wrappers().items():
                if wrapped is not None and wrapper not in wrapped:
                    continue
                for optimizer, factory in optimizers().items():
                    count += 1
                    if count % every == 0:
                        yield Cell(optimizer, wrapper, kind, run_cell(o, factory, wrap, make))


def report(o: Any, every: int) -> str:
    """How many cells are held, by wrapper and by kind of params, and why the others are not."""
    held: dict[str, Counter[str]] = {"wrapper": Counter(), "params": Counter()}
    count: dict[str, Counter[str]] = {"wrapper": Counter(), "params": Counter()}
    reasons: dict[str, list[str]] = defaultdict(list)
    for cell in cells(o, every):
        for group, name in (("wrapper", cell.wrapper), ("params", cell.params)):
            count[group][name] += 1
            held[group][name] += cell.reason is None
        if cell.reason is not None:
            short = " ".join(cell.reason.split())[:160]
            reasons[short].append(f"{cell.optimizer} / {cell.wrapper} / {cell.params}")
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    lines = [f"{sum(held['wrapper'].values())} of {sum(count['wrapper'].values())} cells held"]
    for group, counts in count.items():
        lines += [f"by {group}:"] + [f"  {name:32} {held[group][name]:5} of {n}" for name, n in counts.items()]
    lines += [f"{len(where):4}  {reason}\n      such as {where[0]}" for reason, where in reasons.items()]
    return "\n".join(lines)


def main() -> None:
    """Print the matrix, for treekit and for plain Optax."""
    every = 40 if "QUICK" in os.environ else 1
    for o in (treekit_optax, plain_optax):
        print(f"\n{o.__name__}: {report(o, every)}")


if __name__ == "__main__":
    main()
