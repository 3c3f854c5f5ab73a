"""Optimizers that store state in chosen dtypes go to other processes, as Ray and submitit send them."""

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from tests.optax import cases
from treekit import optax as tko

cloudpickle: Any = importlib.import_module("cloudpickle")  # has no types
PARAMS = {"w": jnp.linspace(-1, 1, 4096).reshape(64, 64).astype(jnp.bfloat16), "b": jnp.ones(3)}
CODES: Any = {"mu": jnp.int8, "nu": jnp.uint8}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "preserving": lambda: tko.dtype_preserving(tko.adam(0.1)),
    "f32": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.float32),
    "by name": lambda: tko.dtype_preserving(tko.adamw(0.1), state_dtype={"mu": jnp.bfloat16}),
    "stochastic": lambda: tko.dtype_preserving(tko.adam(0.1), rounding="stochastic", seed=3),
    "8 bits": lambda: tko.dtype_preserving(tko.adam(0.1), state_dtype=CODES, rounding="stochastic"),
    "around others": lambda: tko.dtype_preserving(
        tko.MultiSteps(tko.masked(tko.adam(0.1), {"w": True, "b": False}), 2), state_dtype=CODES, rounding="stochastic"
    ),
    "in others": lambda: tko.chain(
        tko.clip(1.0), tko.masked(tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.float32), True)
    ),
}


def two_steps(tx: Any) -> Any:
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    return tx.update(PARAMS, state, PARAMS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_loaded_in_the_same_process(name: str) -> None:
    tx = OPTIMIZERS[name]()
    again = cloudpickle.loads(cloudpickle.dumps(tx))
    cases.assert_close(two_steps(again), two_steps(tx))
    cases.assert_close(tx.update(PARAMS, again.init(PARAMS), PARAMS), tx.update(PARAMS, tx.init(PARAMS), PARAMS))


def test_they_are_loaded_in_another_process(tmp_path: Path) -> None:
    made = {name: make() for name, make in OPTIMIZERS.items()}
    (tmp_path / "in").write_bytes(cloudpickle.dumps((made, PARAMS)))
    program = textwrap.dedent(
        """
        import pickle, sys
        made, params = pickle.loads(open(sys.argv[1] + "/in", "rb").read())
        found = {}
        for name, tx in made.items():
            _, state = tx.update(params, tx.init(params), params)
            found[name] = tx.update(params, state, params)
        open(sys.argv[1] + "/out", "wb").write(pickle.dumps(found))
        """
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    found = cloudpickle.loads((tmp_path / "out").read_bytes())
    for name, tx in made.items():
        cases.assert_close(found[name], two_steps(tx))


def test_one_inside_another_is_found_after_loading() -> None:
    inner = cloudpickle.loads(cloudpickle.dumps(tko.dtype_preserving(tko.adam(0.1), state_dtype=jnp.bfloat16)))
    with pytest.raises(TypeError, match=r"is inside dtype_preserving\(.*Give state_dtype to one of them"):
        tko.dtype_preserving(tko.chain(inner), state_dtype=jnp.float32)
