"""Params of every kind, optimizers of every sort, and the laws that all of them together must hold."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import treekit as tk
from tests.releases import has
from treekit import optax as tko

# What JAX has no types for.
structure: Callable[[Any], Any] = jax.tree.structure
effects_barrier: Callable[[], None] = jax.effects_barrier
finfo: Callable[[Any], Any] = jnp.finfo
Partial: Any = jax.tree_util.Partial

# ---------------------------------------------------------------------------------------------------------- params


# Not those of tests/trees.py, which makes arrays: sharding_laws.py has to start processes first.
class Pair(NamedTuple):
    w: jax.Array
    b: jax.Array


class Legacy:
    """A class of the old sort: `__init__` validates what it is given and prepares what it keeps."""

    def __init__(self, w: Any, names: list[str]) -> None:
        if np.ndim(w) != 2:
            raise ValueError("w must be a matrix")
        self.w = jnp.asarray(w) / 2
        self.scale = jnp.ones(2)
        self.names = tuple(name.upper() for name in names)


tk.register_node(Legacy, ["w", "scale"], ["names"])


@tk.node
class Dense:
    """A node that can be called as a model can."""

    w: jax.Array
    b: jax.Array
    activation: Callable[[jax.Array], jax.Array]
    rate: float = 0.5

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(x @ self.w.T + self.b)


class HasArray:
    """A leaf that stands for an array, as Flax's variables do."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __jax_array__(self) -> jax.Array:
        return self.value


class Model(eqx.Module):
    """An Equinox model with leaves that are no arrays: functions, a Python float, a string."""

    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout
    name: str = "model"

    def __call__(self, x: jax.Array) -> jax.Array:
        out: jax.Array = self.mlp(self.dropout(x, inference=True))
        return out


def model() -> Model:
    mlp = eqx.nn.MLP(2, 1, 3, depth=1, activation=jnp.tanh, key=jax.random.key(0))
    return Model(mlp, eqx.nn.Dropout(0.25))


def arrays(dtype: Any = jnp.float32) -> dict[str, Any]:
    return {"w": matrix().astype(dtype), "b": jnp.array([0.5, -0.25], dtype)}


def matrix() -> jax.Array:
    return jnp.linspace(-1, 1, 6).reshape(2, 3)


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


PARAMS: dict[str, Callable[[], Any]] = {
    "f32": arrays,
    "bf16": lambda: arrays(jnp.bfloat16),
    "f16": lambda: arrays(jnp.float16),
    "mixed": lambda: {"w": matrix().astype(jnp.bfloat16), "b": jnp.ones(2)},
    "bf16_f32_grads": lambda: arrays(jnp.bfloat16),
    "c64": lambda: {"w": matrix() * (1 + 0.5j), "b": jnp.ones(2)},
    "none": lambda: {**arrays(), "n": None},
    "empty": lambda: {**arrays(), "d": {}, "t": ()},
    "bare": matrix,
    "namedtuple": lambda: Pair(matrix(), jnp.ones(2)),
    "eqx_raw": model,
    "eqx_filtered": lambda: eqx.filter(model(), eqx.is_inexact_array),
    "eqx_bf16": lambda: cast(model(), jnp.bfloat16),
    "nnx": lambda: nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))[1],
    "linen": lambda: flax.linen.Dense(2).init(jax.random.key(0), jnp.ones(3)),
    "node": lambda: Dense(matrix(), jnp.ones(2), jnp.tanh),
    "legacy": lambda: Legacy([[1.0, 2.0], [3.0, 4.0]], ["x"]),
    "int_key": lambda: {**arrays(), "n": jnp.array([3, 4]), "key": jax.random.key(0), "f": jnp.tanh, "s": "name"},
}

# Outside of `jax.enable_x64` there is no such thing.
PARAMS_X64: dict[str, Callable[[], Any]] = {
    "f64": lambda: arrays(jnp.float64),
    "f64_f32_grads": lambda: arrays(jnp.float64),
    "c128": lambda: arrays(jnp.complex128),
    "f32_in_x64": lambda: arrays(jnp.float32),
}


def make(kind: str) -> Any:
    return (PARAMS | PARAMS_X64)[kind]()


def loss(params: Any) -> jax.Array:
    """A bowl in f32, of another steepness for every element, so that no line search is done at once."""
    leaves = [x for x in jax.tree.leaves(params) if eqx.is_inexact_array(x)]
    wide = [x.astype(jnp.complex64 if jnp.iscomplexobj(x) else jnp.float32).ravel() for x in leaves]
    return sum((jnp.sum(jnp.linspace(1, 2, x.size) * jnp.sqrt(1 + jnp.abs(x - 0.3) ** 2)) for x in wide), jnp.zeros([]))


def gradient(params: Any) -> Any:
    """As Equinox gives it: None where a leaf is no floating array."""
    return jax.tree.map(lambda x: x, eqx.filter_grad(loss)(params))


def grads_of(kind: str, params: Any) -> Any:
    """The gradients that go with a kind of params."""
    grads = gradient(params)
    if kind in ("bf16_f32_grads", "f64_f32_grads"):
        return cast(grads, jnp.float32)
    if kind == "int_key":  # as jax.grad(allow_int=True) gives it
        return {**grads, "n": np.zeros(2, jax.dtypes.float0), "key": np.zeros((), jax.dtypes.float0)}
    return grads


def arrays_of(tree: Any) -> Any:
    return eqx.filter(tree, eqx.is_array)


# ------------------------------------------------------------------------------------------------------ optimizers


class NumbersState(NamedTuple):
    """State of Python numbers, as a user may write it."""

    steps: Any
    seen: Any
    scale: Any


def of_numbers() -> optax.GradientTransformation:
    def init(params: Any) -> NumbersState:
        return NumbersState(0, False, 1.0)

    def update(updates: Any, state: NumbersState, params: Any = None) -> tuple[Any, NumbersState]:
        scaled = jax.tree.map(lambda g: -0.1 * state.scale * g, updates)
        return scaled, NumbersState(state.steps + 1, state.seen | True, 0.9 * state.scale)

    return optax.GradientTransformation(init, update)


def schedule(count: Any) -> Any:
    return 0.01 / (1 + count)


class Schedule(eqx.Module):
    """A tree that is a schedule: of an array, or of a Python float."""

    rate: Any

    def __call__(self, count: Any) -> Any:
        return self.rate / (1 + count)


# Takes a module that has Optax's names, so that plain Optax and treekit build the same. A few of them need `value`,
# `grad` and `value_fn`; all are given these.
OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "sgd": lambda o: o.sgd(0.1, momentum=0.9),
    "sgd_scheduled": lambda o: o.sgd(schedule),
    "adam": lambda o: o.adam(0.01),
    "adam_mu_bf16": lambda o: o.adam(0.01, mu_dtype=jnp.bfloat16),
    "adamw": lambda o: o.adamw(0.01),
    "amsgrad": lambda o: o.amsgrad(0.01),
    "radam": lambda o: o.radam(0.01),
    "adafactor": lambda o: o.adafactor(0.01, min_dim_size_to_factor=2),
    "adagrad": lambda o: o.adagrad(0.01),
    "lamb": lambda o: o.lamb(0.01),
    "lars": lambda o: o.lars(0.01),
    "lion": lambda o: o.lion(0.01),
    "novograd": lambda o: o.novograd(0.01),
    "rmsprop": lambda o: o.rmsprop(0.01),
    "rprop": lambda o: o.rprop(0.01),
    "sm3": lambda o: o.sm3(0.01),
    "yogi": lambda o: o.yogi(0.01),
    "clipped": lambda o: o.chain(o.zero_nans(), o.clip_by_global_norm(1.0), o.adam(0.01)),
    "noise": lambda o: o.chain(o.add_noise(0.1, 0.5, 0), o.ema(0.9), o.sgd(0.1)),
    "apply_every": lambda o: o.chain(o.adam(0.01), o.apply_every(2)),
    "flatten": lambda o: o.flatten(o.adam(0.01)),
    "named_chain": lambda o: o.named_chain(("clip", o.clip(0.5)), ("adam", o.adam(0.01))),
    "polyak_sgd": lambda o: o.polyak_sgd(0.1),
    "lbfgs": lambda o: o.lbfgs(),
    "lbfgs_no_search": lambda o: o.lbfgs(0.1, linesearch=None),
    "backtracking": lambda o: o.chain(o.sgd(0.1), o.scale_by_backtracking_linesearch(5)),
    "plateau": lambda o: o.chain(o.adam(0.01), o.contrib.reduce_on_plateau()),
    "prodigy": lambda o: o.contrib.prodigy(0.1),
    "muon": lambda o: o.contrib.muon(0.01),
    "schedule_free": lambda o: o.contrib.schedule_free_adamw(0.01),
    "dog": lambda o: o.contrib.dog(0.1),
    "ademamix": lambda o: o.contrib.ademamix(0.01),
    "momo": lambda o: o.contrib.momo(0.1),
    "cocob": lambda o: o.contrib.cocob(),
    "numbers": lambda o: o.chain(of_numbers()),
}

# What Optax itself cannot do on the same leaves in a plain list: it raises, or its params are finite no longer.
NOT_OPTAX: dict[tuple[str, str], str] = {
    ("novograd", "bf16_f32_grads"): "its cond returns the state in two dtypes",
    ("prodigy", "f16"): "its estimate starts at 1e-6, and its square is 0 in f16",
    ("prodigy", "c64"): "its estimate is complex, and so are its updates of real params",
    ("named_chain", "c64"): "clip has no order to clip complex numbers by",
}
if not has("optax>=0.2.6"):
    NOT_OPTAX["muon", "c64"] = "its products of complex matrices leave the range"


def sample(offset: int) -> list[tuple[str, str]]:
    """Every kind of params with one of eight optimizers; another one for another offset."""
    names = ["adamw", "sgd", "lbfgs_no_search", "named_chain", "radam", "schedule_free", "numbers", "muon"]
    return [(names[(i + offset) % len(names)], kind) for i, kind in enumerate(PARAMS)]


def cells(wrappers: dict[str, Any], offset: int, *, whole: tuple[str, ...], every: int) -> list[Any]:
    """Wrappers with an optimizer and a kind of params: all kinds for those in `whole`, one of `every` for others."""
    return [
        pytest.param(wrap, *cell, id="-".join((name, *cell)))
        for i, (name, wrap) in enumerate(wrappers.items())
        for j, cell in enumerate(sample(i + offset))
        if cell not in NOT_OPTAX and (name in whole or j % every == i % every)
    ]


# ------------------------------------------------------------------------------------------------------------ laws


def signature(tree: Any) -> Any:
    """What jit, scan and cond compare: the structure, and the shape, dtype and weak type of every leaf."""

    def of(x: Any) -> Any:
        return (x.shape, x.dtype, getattr(x, "weak_type", False)) if eqx.is_array(x) else x

    return structure(tree), list(map(of, jax.tree.leaves(tree)))


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees have one signature and, in each array, the same bits."""
    assert signature(a) == signature(b)
    pairs = zip(*map(jax.tree.leaves, (a, b)), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def run(tx: Any, params: Any, grads: Any, steps: int, state: Any = None) -> tuple[Any, Any]:
    """The updates of the last step and the state after it, on the same params."""

    def body(carry: Any, _: None) -> Any:
        return tx.update(grads, carry[1], params), None

    state = tx.init(params) if state is None else state
    shapes = jax.eval_shape(tx.update, grads, state, params)[0]
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), state
    end: tuple[Any, Any] = jax.jit(lambda carry: jax.lax.scan(body, carry, None, steps)[0])(start)
    return end


def extra_for(params: Any, grads: Any) -> dict[str, Any]:
    return {"value": loss(params), "grad": grads, "value_fn": loss}


def train(tx: Any, kind: str, steps: int, params: Any = None) -> tuple[Callable[[Any, Any], Any], list[Any]]:
    """One step, jitted; and the params and the state after 0, 1, ... of them."""

    @eqx.filter_jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(grads_of(kind, params), state, params)
        return tko.apply_updates(params, updates), state

    params = make(kind) if params is None else params
    reached = [(params, tx.init(params))]
    for _ in range(steps):
        reached.append(step(*reached[-1]))
    return step, reached


def check_laws(tx: optax.GradientTransformation, kind: str, steps: int = 4) -> tuple[Any, Any]:
    """Every law of the matrix on one cell; the params and state at the end."""
    tx = optax.with_extra_args_support(tx)
    params = first_params = make(kind)
    traces = 0
    state = first_state = tx.init(params)
    at_init, params_at_init = signature(state), signature(params)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state)), "the state holds arrays only"

    def step(params: Any, state: Any) -> tuple[Any, Any, Any, Any]:
        nonlocal traces
        traces += 1
        grads = grads_of(kind, params)
        updates, state = tx.update(grads, state, params, **extra_for(params, grads))
        return tko.apply_updates(params, updates), state, updates, grads

    jitted = eqx.filter_jit(step)
    updates = grads = None
    for _ in range(steps):
        params, state, updates, grads = jitted(params, state)
        assert signature(state) == at_init
        assert signature(params) == params_at_init
    assert traces == 1, f"{traces} traces"
    check_updates(updates, grads, params)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((params, state)) if eqx.is_inexact_array(x))
    check_scan(step, first_params, first_state)
    return params, state


def check_updates(updates: Any, grads: Any, params: Any) -> None:
    """None where there is no gradient; else an array of the shape of the param, and of the kind of its dtype."""

    def check(param: Any, grad: Any, update: Any) -> None:
        if grad is None or grad.dtype == jax.dtypes.float0:
            # masked passes on what it leaves out, be it a float0.
            assert update is None or update is grad or update.dtype == jax.dtypes.float0
        else:
            assert update.shape == param.shape and not update.weak_type
            assert jnp.iscomplexobj(param) or jnp.issubdtype(update.dtype, jnp.floating)

    jax.tree.map(check, params, grads, updates, is_leaf=lambda x: x is None)


def check_scan(step: Callable[..., Any], params: Any, state: Any) -> None:
    """A scan takes params and state for its carry. Tracing tells; nothing is compiled."""
    dynamic, static = eqx.partition(params, eqx.is_array)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        dynamic, state = carry
        params, state, _, _ = step(eqx.combine(dynamic, static), state)
        return (arrays_of(params), state), None

    jax.eval_shape(lambda carry: jax.lax.scan(body, carry, None, 2), (dynamic, state))


def inexact(tree: Any) -> list[Any]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))


def cast_like(arrays: list[Any], like: list[Any]) -> list[Any]:
    return [x.astype(y.dtype) for x, y in zip(arrays, like, strict=True)]


def mask_of(params: Any) -> Any:
    """A mask of the matrices, made from the filtered params."""
    return jax.tree.map(lambda x: np.ndim(x) > 1, eqx.filter(params, eqx.is_inexact_array))


def assert_close(a: Any, b: Any, rtol: float = 2e-6) -> None:
    """Equal structure, and values within `rtol` (a unit or two in the last place, for 16-bit leaves)."""
    assert structure(a) == structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert x.dtype == y.dtype
        coarse = 2 * float(finfo(x.dtype).eps) if jnp.issubdtype(x.dtype, jnp.inexact) else 0.0
        wide = np.complex128 if jnp.iscomplexobj(x) else np.float64
        np.testing.assert_allclose(np.asarray(x).astype(wide), np.asarray(y).astype(wide), max(rtol, coarse), 1e-6)


def same_as_optax(ours: optax.GradientTransformation, theirs: optax.GradientTransformation, kind: str) -> None:
    """The numbers and the structure of the state are Optax's own, over three steps."""
    ours, theirs = optax.with_extra_args_support(ours), optax.with_extra_args_support(theirs)
    a = b = make(kind)
    state_a, state_b = ours.init(a), theirs.init(b)

    @jax.jit
    def step(a: Any, b: Any, state_a: Any, state_b: Any) -> Any:
        grads_a, grads_b = grads_of(kind, a), grads_of(kind, b)
        updates_a, state_a = ours.update(grads_a, state_a, a, **extra_for(a, grads_a))
        updates_b, state_b = theirs.update(grads_b, state_b, b, **extra_for(b, grads_b))
        return tko.apply_updates(a, updates_a), optax.apply_updates(b, updates_b), state_a, state_b

    for _ in range(3):
        assert structure(state_a) == structure(state_b)
        a, b, state_a, state_b = step(a, b, state_a, state_b)
        assert_close(a, b)
