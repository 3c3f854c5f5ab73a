"""Optimizers that store state in chosen dtypes go to other processes, as Ray and submitit send them."""

import subprocess
import sys
import textwrap
from pathlib import Path

# In programs of their own, since functions that beartype checks cannot be pickled. Both begin with this.
BEGIN = """
import pathlib
import pickle
import sys

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from treekit import optax

here = pathlib.Path(sys.argv[1])
params = {"w": jnp.linspace(-1, 1, 4096).reshape(64, 64).astype(jnp.bfloat16), "b": jnp.ones(3)}


def two_steps(tx):
    _, state = tx.update(params, tx.init(params), params)
    return tx.update(params, state, params)


def check_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
"""
DUMP = """
codes = {"mu": jnp.int8, "nu": jnp.uint8}
adam = optax.adam(0.1)
made = {
    "preserving": optax.dtype_preserving(adam),
    "f32": optax.dtype_preserving(adam, state_dtype=jnp.float32),
    "by name": optax.dtype_preserving(adam, state_dtype={"mu": jnp.bfloat16}),
    "stochastic": optax.dtype_preserving(adam, rounding="stochastic", seed=3),
    "8 bits": optax.dtype_preserving(adam, state_dtype=codes, rounding="stochastic"),
    "around others": optax.dtype_preserving(
        optax.MultiSteps(optax.masked(adam, {"w": True, "b": False}), 2), state_dtype=codes, rounding="stochastic"
    ),
    "in others": optax.chain(
        optax.clip(1.0), optax.masked(optax.dtype_preserving(adam, state_dtype=jnp.float32), True)
    ),
}
for name, tx in made.items():
    again = cloudpickle.loads(cloudpickle.dumps(tx))
    check_same(two_steps(again), two_steps(tx))
    _, state = tx.update(params, tx.init(params), params)
    check_same(again.update(params, state, params), two_steps(tx))
inner = cloudpickle.loads(cloudpickle.dumps(made["f32"]))
try:
    optax.dtype_preserving(optax.chain(inner), state_dtype=jnp.bfloat16)
except TypeError as error:
    assert "is inside dtype_preserving" in str(error)
else:
    raise AssertionError("one inside another is not found after loading")
(here / "optimizers").write_bytes(cloudpickle.dumps(made))
(here / "results").write_bytes(pickle.dumps({name: two_steps(tx) for name, tx in made.items()}))
"""
LOAD = """
made = pickle.loads((here / "optimizers").read_bytes())
results = pickle.loads((here / "results").read_bytes())
assert list(made) == list(results) and len(made) == 7
for name, tx in made.items():
    check_same(two_steps(tx), results[name])
"""


def test_they_are_loaded_in_the_same_process_and_in_another(tmp_path: Path) -> None:
    for program in (DUMP, LOAD):
        code = textwrap.dedent(BEGIN + program)
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
