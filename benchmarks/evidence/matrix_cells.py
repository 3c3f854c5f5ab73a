"""The cells of the matrix: optimizers, ways to wrap them, and kinds of params."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import optax as plain_optax

import treekit as tk
import treekit.optax as treekit_optax

Factory = Callable[[Any], Any]  # from the module, Optax's or ours, to a transformation

# Aliases that take a learning rate alone, or nothing.
_BY_LEARNING_RATE = (
    "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw "
    "noisy_sgd novograd optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi"
)
_CONTRIB_BY_LEARNING_RATE = "acprop ademamix adopt galore madgrad muon simplified_ademamix sophia"
_CONTRIB = "cocob dadapt_adamw dog dowg momo momo_adam prodigy schedule_free_adamw schedule_free_sgd"


def _alias(name: str, *args: float, contrib: bool = False) -> Factory:
    return lambda o: getattr(o.contrib if contrib else o, name)(*args)


class CountingState(NamedTuple):
    """State that is not an array: Python numbers."""

    steps: int
    seen: bool
    rate: float


def _counting(o: Any) -> Any:
    def init(params: Any) -> CountingState:
        del params
        return CountingState(0, False, 0.5)

    def update(updates: Any, state: CountingState, params: Any = None) -> tuple[Any, CountingState]:
        del params
        descent = jax.tree.map(lambda g: -g * state.rate, updates)
        return descent, CountingState(state.steps + 1, state.seen | True, state.rate * 0.9)

    tx = plain_optax.GradientTransformation(init, update)
    return tx if o is plain_optax else treekit_optax.chain(tx)


_SCHEDULE = plain_optax.linear_schedule(1e-2, 1e-3, 10)
OPTIMIZERS: dict[str, Factory] = {
    **{name: _alias(name, 1e-2) for name in _BY_LEARNING_RATE.split()},
    **{name: _alias(name, contrib=True) for name in _CONTRIB.split()},
    **{name: _alias(name, 1e-2, contrib=True) for name in _CONTRIB_BY_LEARNING_RATE.split()},
    "sgd, momentum": lambda o: o.sgd(1e-2, momentum=0.9),
    "sgd, nesterov, schedule": lambda o: o.sgd(_SCHEDULE, momentum=0.9, nesterov=True),
    "adam, schedule": lambda o: o.adam(_SCHEDULE),
    "adam, mu_dtype": lambda o: o.adam(1e-2, mu_dtype=jnp.bfloat16),
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


def _all_true(params: Any) -> Any:
    return jax.tree.map(lambda _: True, params)


def _all_labelled(params: Any) -> Any:
    return jax.tree.map(lambda _: "a", params)


def _inject(o: Any, make: Factory) -> Any:
    def factory(rate: float) -> Any:
        return o.chain(o.masked(o.scale(rate), _all_true), make(o))

    return o.inject_hyperparams(factory)(0.5)


Wrapper = Callable[[Any, Factory], Any]  # from the module and what makes the optimizer
_SIMPLE: dict[str, Wrapper] = {
    "plain": lambda o, make: make(o) if o is plain_optax else o.chain(make(o)),
    "masked": lambda o, make: o.masked(make(o), _all_true),
    "partition": lambda o, make: o.partition({"a": make(o), "b": o.set_to_zero()}, _all_labelled),
    "inject_hyperparams": _inject,
    "MultiSteps": lambda o, make: o.MultiSteps(make(o), 2).gradient_transformation(),
    "apply_if_finite": lambda o, make: o.apply_if_finite(make(o), 2),
}


def _nested(outer: str, inner: str) -> Wrapper:
    return lambda o, make: _SIMPLE[outer](o, lambda o: _SIMPLE[inner](o, make))


WRAPPERS: dict[str, Wrapper] = {
    **_SIMPLE,
    "MultiSteps of masked": _nested("MultiSteps", "masked"),
    "inject of MultiSteps": _nested("inject_hyperparams", "MultiSteps"),
    "masked of masked": _nested("masked", "masked"),
    "partition of apply_if_finite": _nested("partition", "apply_if_finite"),
    "apply_if_finite of MultiSteps": _nested("apply_if_finite", "MultiSteps"),
}

# The leaves are alike and in one order wherever they can be, so that XLA compiles one program for many kinds.


class Pair(NamedTuple):
    """Params in a named tuple."""

    b: Any
    w: Any


@tk.node
class Dense:
    """A node of treekit's, with a static part."""

    b: Any
    w: Any
    name: str = tk.field(static=True)


class Legacy:
    """A class that validates and preprocesses what it is given."""

    def __init__(self, b: Any, w: Any) -> None:
        if w.shape[-1] != b.shape[-1]:
            raise ValueError("w and b do not match")
        self.w = w * 2
        self.b = b * 2


tk.register_node(Legacy, data_fields=["b", "w"], meta_fields=[])


class Model(eqx.Module):
    """An Equinox model with a function, a string and a Python float among its leaves."""

    layer: eqx.nn.Linear
    activation: Callable[..., Any]
    dropout: eqx.nn.Dropout
    name: str

    def __call__(self, x: Any) -> Any:
        return self.activation(self.layer(x))


def _model(dtype: Any = jnp.float32) -> Model:
    layer = eqx.nn.Linear(3, 4, key=jax.random.key(0), dtype=dtype)
    return Model(layer, jax.nn.relu, eqx.nn.Dropout(0.5), "model")


class Kind(NamedTuple):
    """A kind of params: how they are made, the dtype of their gradients where it is another one, whether in x64."""

    make: Callable[[], Any]
    grad_dtype: Any = None
    x64: bool = False


def _leaves(w_dtype: Any, b_dtype: Any = None) -> tuple[jax.Array, jax.Array]:
    b, w = jnp.linspace(0.5, 1, 4), jnp.linspace(-1, 1, 12).reshape(3, 4)
    return b.astype(b_dtype or w_dtype), w.astype(w_dtype)


def _dict_of(w: Any, b: Any = None) -> Callable[[], Any]:
    return lambda: dict(zip("bw", _leaves(w, b), strict=True))


def _nnx_state() -> Any:
    return flax.nnx.state(flax.nnx.Linear(3, 4, rngs=flax.nnx.Rngs(0)), flax.nnx.Param)


_F32, _BF16 = jnp.float32, jnp.bfloat16
KINDS_OF_PARAMS = {
    "dict f32": Kind(_dict_of(_F32)),
    "dict bf16": Kind(_dict_of(_BF16)),
    "dict f16": Kind(_dict_of(jnp.float16)),
    "dict f64": Kind(_dict_of("float64"), x64=True),
    "dict complex64": Kind(_dict_of(jnp.complex64)),
    "mixed bf16, f32": Kind(_dict_of(_BF16, _F32)),
    "bf16, f32 gradients": Kind(_dict_of(_BF16), grad_dtype=_F32),
    "None leaves": Kind(lambda: {**_dict_of(_F32)(), "n": None}),
    "empty subtrees": Kind(lambda: {**_dict_of(_F32)(), "e": {}, "t": ()}),
    "bare array": Kind(lambda: _leaves(_F32)[1]),
    "named tuple": Kind(lambda: Pair(*_leaves(_F32))),
    "Equinox raw": Kind(_model),
    "Equinox filtered": Kind(lambda: eqx.filter(_model(), eqx.is_inexact_array)),
    "Equinox raw bf16": Kind(lambda: _model(_BF16)),
    "NNX state": Kind(_nnx_state),
    "Linen dict": Kind(lambda: flax.linen.Dense(4).init(jax.random.key(0), jnp.ones((1, 3)))),
    "treekit node": Kind(lambda: Dense(*_leaves(_F32), name="d")),
    "legacy class": Kind(lambda: Legacy(*_leaves(_F32))),
    "ints and keys": Kind(lambda: {**_dict_of(_F32)(), "i": jnp.arange(3), "k": jax.random.key(0)}),
}
