"""Which moments of which optimizer can be stored in 8 bits: a table, wherever the optimizer is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib as contrib
import pytest

from treekit import optax as tko

SHAPE = (64, 80)
PARAMS = {"b": jnp.ones(3), "w": jax.random.normal(jax.random.key(1), SHAPE)}
TARGET = jax.random.normal(jax.random.key(2), SHAPE)
I8, U8 = np.dtype(np.int8), np.dtype(np.uint8)
MU_NU = {"mu": I8, "nu": U8}

# For each class of state an optimizer, with the moments that can be stored in 8 bits; and some that use one otherwise.
OPTIMIZERS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "adabelief": (lambda: optax.adabelief(0.01), MU_NU),
    "adadelta": (lambda: optax.adadelta(1.0), {"e_g": U8, "e_x": U8}),
    "adafactor": (lambda: optax.adafactor(0.01), {"v": U8}),
    "adagrad": (lambda: optax.adagrad(0.1), {"sum_of_squares": U8}),
    "adam": (lambda: optax.adam(0.01), MU_NU),
    "adamax": (lambda: optax.adamax(0.01), MU_NU),
    "adan": (lambda: optax.adan(0.01), {"m": I8, "v": I8, "g": I8, "n": U8}),
    "ademamix": (lambda: contrib.ademamix(0.01), {"m1": I8, "m2": I8, "nu": U8}),
    "amsgrad": (lambda: optax.amsgrad(0.01), {**MU_NU, "nu_max": U8}),
    "dadapt_adamw": (lambda: contrib.dadapt_adamw(1.0), {"exp_avg": I8, "exp_avg_sq": U8, "grad_sum": I8}),
    "ema": (lambda: optax.chain(optax.ema(0.9), optax.scale(-0.01)), {"ema": I8}),
    "lars": (lambda: optax.lars(0.1, momentum=0.9), {"trace": I8}),
    "lbfgs": (lambda: optax.lbfgs(0.1, linesearch=None), {"diff_params_memory": I8, "diff_updates_memory": I8}),
    "lion": (lambda: optax.lion(0.01), {"mu": I8}),
    "madgrad": (lambda: contrib.madgrad(0.01), {"s": I8, "grad_sum_sq": U8}),
    "momo": (lambda: contrib.momo(0.1), {"exp_avg": I8}),
    "momo_adam": (lambda: contrib.momo_adam(0.01), {"exp_avg": I8, "exp_avg_sq": U8}),
    "muon": (lambda: contrib.muon(0.01), {"mu": I8}),
    "novograd": (lambda: optax.novograd(0.01), {"mu": I8}),
    "optimistic": (lambda: optax.optimistic_gradient_descent(0.01), {"previous_gradient": I8}),
    "prodigy": (lambda: contrib.prodigy(), {"exp_avg": I8, "exp_avg_sq": U8, "grad_sum": I8}),
    "rmsprop": (lambda: optax.rmsprop(0.01, momentum=0.9), {"nu": U8, "trace": I8}),
    "rmsprop with bias correction": (lambda: optax.rmsprop(0.01, bias_correction=True), {"nu": U8}),
    "rprop": (lambda: optax.rprop(0.01), {"prev_updates": I8, "step_sizes": U8}),
    "simplified_ademamix": (lambda: contrib.simplified_ademamix(0.001, b1=0.9), {"m": I8, "n": U8}),
    "sm3": (lambda: optax.sm3(0.1), {"mu": U8, "nu": I8}),  # nu has a sign
    "sophia": (lambda: contrib.sophia(0.01), {"mu": I8, "nu": I8}),  # nu has a sign
    "yogi": (lambda: optax.yogi(0.01), MU_NU),
}
# Those that have none, or others that cannot be stored in 8 bits.
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lbfgs": (lambda: optax.lbfgs(0.1, linesearch=None), "updates"),  # subtracted from the next ones
    "cocob": (lambda: contrib.cocob(), "subgradients"),  # sums of gradients, which leave the range
    "rmsprop, centered": (lambda: optax.rmsprop(0.01, centered=True), "nu"),  # less the square of the other
    "rmsprop, centered, its mean": (lambda: optax.rmsprop(0.01, centered=True), "mu"),
    "galore's projector": (lambda: contrib.galore(0.01), "projector"),
    "a line search": (lambda: optax.scale_by_backtracking_linesearch(3, store_grad=True), "grad"),
}
PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "bare": lambda make, names: eight_bit(make(), names),
    "masked": lambda make, names: eight_bit(tko.masked(make(), {"b": False, "w": True}), names),
    "partition": lambda make, names: eight_bit(
        tko.partition({"a": make(), "b": optax.sgd(0.1)}, {"b": "b", "w": "a"}), names
    ),
    "in MultiSteps": lambda make, names: tko.MultiSteps(eight_bit(make(), names), 2).gradient_transformation(),
    "of MultiSteps": lambda make, names: eight_bit(tko.MultiSteps(make(), 2), names),
    "of inject": lambda make, names: eight_bit(
        tko.inject_hyperparams(lambda scale: optax.chain(make(), optax.scale(scale)))(1.0), names
    ),
    "in inject": lambda make, names: tko.inject_hyperparams(
        lambda scale: optax.chain(eight_bit(make(), names), optax.scale(scale))
    )(1.0),
    "all of them": lambda make, names: tko.masked(
        eight_bit(tko.MultiSteps(tko.partition({"a": tko.apply_if_finite(make(), 2)}, "a"), 2), names),
        {"b": False, "w": True},
    ),
}


def eight_bit(tx: Any, names: Any) -> Any:
    return tko.dtype_preserving(tx, state_dtype=names, rounding="stochastic")


def dtypes_of(state: Any) -> dict[str, Any]:
    """The dtype of each moment of `w` that is large, by its field."""
    found = {}
    for path, x in jax.tree_util.tree_flatten_with_path(state)[0]:
        fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey) and key.name != "codes"]
        if np.prod(x.shape) >= 4096:
            found[fields[-1]] = x.dtype
    return found


# Each optimizer by itself, and some in each place.
CELLS = [(name, "bare") for name in OPTIMIZERS]
CELLS += [(name, place) for place in PLACES if place != "bare" for name in ("adam", "sm3", "rmsprop")]


def loss(params: Any, key: Any) -> Any:
    noise = 10 * jnp.sum(jax.random.normal(key, SHAPE) * params["w"])
    return jnp.mean((params["w"] - TARGET) ** 2) * 2_000 + noise / 1_000 - 1e-3 * jnp.sum(params["b"] ** 2)


def train(tx: Any) -> tuple[Any, Any]:
    """The weights after some steps, and the loss of each."""

    def step(carry: Any, key: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, key)
        extra = {"value": value, "obj_fn": lambda p: loss(p, key)}
        updates, state = tx.update(grads, state, params, **extra)
        return (tko.apply_updates(params, updates), state), value

    keys = jax.random.split(jax.random.key(0), 40)
    (params, _), losses = jax.jit(lambda x: jax.lax.scan(step, x, keys))((PARAMS, tx.init(PARAMS)))
    return params["w"], losses


@pytest.mark.parametrize("name, place", CELLS)
def test_each_moment_has_the_code_of_its_sign_and_no_other(name: str, place: str) -> None:
    make, names = OPTIMIZERS[name]
    found = dtypes_of(jax.eval_shape(PLACES[place](make, names).init, PARAMS))
    small = ("mu",) if name == "sm3" else ()  # an array for each axis
    assert {field: dtype for field, dtype in found.items() if field in names} == {
        field: dtype for field, dtype in names.items() if field not in small
    }
    for field, dtype in names.items():
        message = "becomes negative, .* Use jnp.int8" if dtype == I8 else "is never negative, .* Use jnp.uint8"
        with pytest.raises(ValueError, match=rf"and the accumulator '{field}' {message}"):
            jax.eval_shape(PLACES[place](make, {field: U8 if dtype == I8 else I8}).init, PARAMS)


@pytest.mark.parametrize(
    "name, place", [(name, "bare") for name in REFUSED] + [("lbfgs", place) for place in PLACES if place != "bare"]
)
def test_what_8_bits_cannot_store_is_refused(name: str, place: str) -> None:
    make, field = REFUSED[name]
    message = rf"'{field}' of \w+State, at .*, is not among the moments .* Use jnp\.bfloat16"
    for dtype in (I8, U8):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(PLACES[place](make, {field: dtype}).init, PARAMS)


def test_a_state_of_your_own_is_refused() -> None:
    def init(params: Any) -> Any:
        return {"m": jax.tree.map(jnp.zeros_like, params)}

    tx = eight_bit(optax.GradientTransformation(init, optax.identity().update), {"m.**": I8})
    message = r"at m\.b, is not among the moments .* if the transformation is yours, let its"
    with pytest.raises(ValueError, match=message):
        tx.init(PARAMS)


@pytest.mark.parametrize("name, place", CELLS)
def test_training_is_that_of_f32(name: str, place: str) -> None:
    make, names = OPTIMIZERS[name]
    params, losses = train(PLACES[place](make, names))
    expected, wide = train(PLACES[place](make, {field: jnp.float32 for field in names}))
    assert np.isfinite(params).all() and np.isfinite(losses).all()
    assert np.linalg.norm(params - expected) < 0.35 * np.linalg.norm(expected - PARAMS["w"])
    assert losses[-1] < wide[-1] + 0.1 * (wide[0] - wide[-1])
