"""apply_gradients: a whole step, equal to `update` then `apply_updates`."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from treekit import optax as tko
from treekit import training

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tko.adam(0.1),
    "optax": lambda: optax.sgd(0.01, momentum=0.9),
    "extra arguments": lambda: tko.masked(tko.contrib.prodigy(0.1), cases.mask_of),
    "MultiSteps": lambda: tko.MultiSteps(tko.MultiSteps(tko.adam(0.1), 2), 2),
    "MultiSteps of optax": lambda: optax.MultiSteps(tko.chain(optax.adam(0.1)), 2),
}


@pytest.mark.parametrize("key", [None, jax.random.key(3)], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_update_then_apply_updates(name: str, key: Any) -> None:
    optimizer, params = OPTIMIZERS[name](), cases.make("eqx_bf16")
    grads = cases.grads_of("eqx_bf16", params)
    extra = cases.extra_for(params, grads) if name == "extra arguments" else {}
    tx = tko.chain(optimizer)
    ours = theirs = (params, tx.init(params)[0])
    for _ in range(3):
        ours = training.apply_gradients(optimizer, grads, ours[1], ours[0], key=key, **extra)
        updates, (state,) = tx.update(grads, (theirs[1],), theirs[0], **extra)
        theirs = tko.apply_updates(theirs[0], updates, key=key), state
    assert cases.signature(ours) == cases.signature(theirs)
    cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs))


# ------------------------------------------------------------------------------------------------------- no gradient

PARAMS = cases.arrays()
# An optimizer, and gradients that are all missing, which raise whatever the optimizer would do with them.
NOTHING: dict[str, tuple[Any, Any]] = {
    "float0": (tko.sgd(0.1), {name: np.zeros(x.shape, jax.dtypes.float0) for name, x in PARAMS.items()}),
    "MultiSteps": (tko.MultiSteps(tko.sgd(0.1), 2), dict.fromkeys(PARAMS)),
}


@pytest.mark.parametrize("name", NOTHING)
def test_gradients_that_are_all_missing_raise_in_a_whole_step(name: str) -> None:
    tx, grads = NOTHING[name]
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match="grads"):
        training.apply_gradients(tx, grads, state, PARAMS)
    tx.update(grads, state, PARAMS)  # as in Optax


class Buffers(eqx.Module):
    mean: jax.Array = eqx.field(metadata={"trainable": False})


@pytest.mark.parametrize("params", [{}, {"n": 2, "f": jnp.tanh}, Buffers(jnp.ones(2))])
def test_params_without_arrays_that_are_trained_raise_in_a_whole_step(params: Any) -> None:
    tx = tko.sgd(0.1)
    with pytest.raises(ValueError, match=type(params).__name__):
        training.apply_gradients(tx, None, tx.init(params), params)
    assert not tk.tree_diff(tko.apply_updates(params, tx.update(None, tx.init(params), params)[0]), params)
