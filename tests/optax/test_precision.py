"""dtype_preserving: users' own transformations, with the dtypes of their state kept or stated."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from tests.trees import INT
from treekit import optax as tko

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "dtype_preserving": lambda tx: tko.dtype_preserving(tx),
    "of_filtered": lambda tx: tko.dtype_preserving(tko.filtered(tx)),
    "f32": lambda tx: tko.dtype_preserving(tx, state_dtype=jnp.float32),
}


@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 1, whole=("dtype_preserving",), every=3))
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    cases.check_laws(wrap(cases.OPTIMIZERS[name](optax)), kind)


@pytest.mark.parametrize("name", ["adam", "radam", "amsgrad", "rmsprop", "lion", "adagrad", "yogi", "adafactor"])
def test_bf16_params_with_f32_gradients_keep_their_state(name: str) -> None:
    """For three of these plain Optax does not: strict, or it has mended it."""
    cases.check_laws(tko.dtype_preserving(cases.OPTIMIZERS[name](optax)), "bf16_f32_grads")
    params = cases.arrays(jnp.bfloat16)
    tx = cases.OPTIMIZERS[name](optax)
    state = tx.init(params)
    _, after = tx.update(cases.cast(params, jnp.float32), state, params)
    if name in ("adam", "radam", "amsgrad"):
        assert cases.signature(state) != cases.signature(after)


def test_state_dtype_leaves_ints_bools_and_keys_alone() -> None:
    tx = tko.dtype_preserving(optax.chain(cases.of_numbers(), optax.add_noise(0.1, 0.5, 0)), state_dtype=jnp.float32)
    params = cases.arrays(jnp.bfloat16)
    state = tx.init(params)
    assert (state[0].steps.dtype, state[0].seen.dtype) == (INT, jnp.bool_)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}
FLOATING = "must be a floating dtype, found"
EIGHT_BITS = "must be a floating dtype, .*For 8 bits a number: "
# The words of the error, and what dtype_preserving is called with.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    f"^state_dtype {FLOATING}": [{"state_dtype": x} for x in (jnp.int32, bool, jnp.complex64, 3, "no_dtype")],
    r"^state_dtype must be a floating dtype, found 'bf16'\. jnp\.bfloat16 is one$": [{"state_dtype": "bf16"}],
    rf"state_dtype\['mu'\] {FLOATING}": [{"state_dtype": {"mu": jnp.int32}}, {"state_dtype": {"mu": None}}],
    "state_dtype must map fields or patterns to dtypes, found the key 0": [{"state_dtype": {0: jnp.float32}}],
    "state_dtype must map fields or patterns to dtypes, found the key None": [{"state_dtype": {None: jnp.float32}}],
    "does not say which accumulators are never negative. Name them: .*'mu'": [{"state_dtype": jnp.int8}],
    "uint8 does not say which accumulators are never negative": [{"state_dtype": "uint8"}],
    rf"\['mu'\] {EIGHT_BITS}": [{"state_dtype": {"mu": jnp.int16}}, {"state_dtype": {"mu": jnp.int4}}],
    EIGHT_BITS: [{"state_dtype": jnp.uint16}],
    "most second moments are zero.* What works in 8 bits: ": [{"state_dtype": jnp.float8_e4m3fn}],
    r"\['nu'\] is float8_e5m2, in which .*'nu': jnp.uint8": [{"state_dtype": {"nu": jnp.float8_e5m2}}],
    "seed must be an int, found": [{"seed": jax.random.key(0)}],
    "rounding must be 'nearest' or 'stochastic', found 'up'": [{"rounding": "up"}],
    r"\['mu'\] is int8, which needs rounding='stoch": [{"state_dtype": CODES, "rounding": "nearest"}],
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_that_cannot_work(message: str) -> None:
    anything = inspect.unwrap(tko.dtype_preserving)  # beartype would be the first to say so
    for options in ARGUMENTS[message]:
        with pytest.raises((TypeError, ValueError), match=message):
            anything(optax.adam(0.1), **{"rounding": "stochastic", **options})
