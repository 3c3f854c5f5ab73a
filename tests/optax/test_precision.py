"""dtype_preserving: users' own transformations, with the dtypes of their state kept or stated."""

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


def cells() -> list[Any]:
    return [
        pytest.param(wrap, *cell, id="-".join((name, *cell)))
        for i, (name, wrap) in enumerate(WRAPPERS.items())
        for j, cell in enumerate(cases.sample(i + 1))
        if cell not in cases.NOT_OPTAX and (name == "dtype_preserving" or j % 3 == i)
    ]


@pytest.mark.parametrize("wrap, name, kind", cells())
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


@pytest.mark.parametrize("name", ["adam", "sgd", "clipped"])
def test_state_of_16_bit_params_may_be_held_in_f32(name: str) -> None:
    """And is computed in it: the numbers are those of f32 params, rounded once."""
    tx = tko.dtype_preserving(cases.OPTIMIZERS[name](optax), state_dtype=jnp.float32)
    params = cases.arrays(jnp.bfloat16)
    state = tx.init(params)
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert floats and {x.dtype for x in floats} == {jnp.dtype(jnp.float32)}
    grads = cases.gradient(params)
    updates, state = jax.jit(tx.update)(grads, state, params)
    wide, wide_grads = cases.cast(params, jnp.float32), cases.cast(grads, jnp.float32)
    plain = cases.OPTIMIZERS[name](optax)
    expected, _ = plain.update(wide_grads, plain.init(wide), wide)
    cases.assert_close(updates, cases.cast(expected, jnp.bfloat16))
    assert cases.signature(state) == cases.signature(tx.init(params))


def test_a_second_moment_in_f32_decays_where_one_in_bf16_stands_still() -> None:
    params = jnp.ones(1, jnp.bfloat16)
    ends = {}
    for dtype in (None, jnp.float32):
        tx = tko.dtype_preserving(optax.scale_by_adam(b2=0.999), state_dtype=dtype)
        state = tx.init(params)._replace(nu=jnp.full(1, 0.5, dtype or jnp.bfloat16))

        def body(state: Any, _: None, tx: Any = tx) -> Any:
            return tx.update(jnp.full(1, 0.01, jnp.float32), state, params)[1], None

        state, _ = jax.lax.scan(body, state, None, 2000)
        ends[dtype] = float(state.nu[0])
    assert ends[jnp.float32] < 0.1 < ends[None]


def test_state_dtype_leaves_ints_bools_and_keys_alone() -> None:
    tx = tko.dtype_preserving(optax.chain(cases.of_numbers(), optax.add_noise(0.1, 0.5, 0)), state_dtype=jnp.float32)
    params = cases.arrays(jnp.bfloat16)
    state = tx.init(params)
    assert (state[0].steps.dtype, state[0].seen.dtype) == (INT, jnp.bool_)
    _, after = tx.update(params, state, params)
    assert cases.signature(after) == cases.signature(state)


@pytest.mark.parametrize("dtype", [jnp.int32, bool, jnp.complex64, "no_dtype"])
def test_a_state_dtype_that_is_no_floating_one_is_an_error(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"state_dtype|data type"):
        tko.dtype_preserving(optax.adam(0.1), state_dtype=dtype)


def test_an_unknown_rounding_is_an_error() -> None:
    rounding: Any = "up"
    with pytest.raises(Exception, match="rounding"):
        tko.dtype_preserving(optax.adam(0.1), rounding=rounding)


def test_it_takes_raw_models_and_keeps_extra_arguments() -> None:
    model = cases.model()
    tx = tko.dtype_preserving(optax.lbfgs())
    grads = cases.gradient(model)
    _, state = tx.update(grads, tx.init(model), model, **cases.extra_for(model, grads))
    assert cases.signature(state) == cases.signature(tx.init(model))


def test_a_state_that_changes_its_structure_is_an_error() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return updates, {**state, "extra": jnp.ones(1)}

    tx = tko.dtype_preserving(optax.GradientTransformation(lambda params: {"x": jnp.ones(1)}, update))
    with pytest.raises(TypeError, match=r"(?s)state.*2 children: extra, x"):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
