"""Optimizers survive cloudpickle, as Ray, submitit and joblib use it, in the same process and into another one."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.compile_fast import COMPILE_FAST
from tests.releases import has

HAS_MONITOR = has("optax.monitor")
OPTIMIZERS = {
    "chain": "optax.chain(optax.clip(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 10)), optax.params_ema(0.9))",
    "filtered": "optax.filtered(optax.adam(0.1))",
    "masked": "optax.masked(optax.adam(0.1), {'w': True, 'b': False})",
    "freeze": "optax.chain(optax.sgd(0.1), optax.freeze(tk.path_mask('w')))",
    "partition": "optax.partition({0: optax.sgd(0.1), 1: optax.set_to_zero()}, tk.path_labels({'w': 0}, default=1))",
    "multi_steps": "optax.MultiSteps(optax.adam(0.1), 1)",
    "apply_if_finite": "optax.apply_if_finite(optax.adam(0.1), 2)",
    "conditionally": "optax.conditionally_mask(optax.adam(0.1), lambda step: step >= 0)",
    "inject": "optax.inject_hyperparams(optax.adam)(0.1)",
    "lbfgs": "optax.lbfgs(linesearch=None)",
    **({"monitor": "optax.chain(optax.monitor({'norm': optax.tree.norm}), optax.sgd(0.1))"} if HAS_MONITOR else {}),
    "scale_by_tree": "optax.scale_by_tree({'w': 0.1, 'b': 0.2})",
    "f32": "optax.dtype_preserving(optax.adam(0.1), state_dtype=jnp.float32)",
    "by name": "optax.dtype_preserving(optax.adam(0.1), state_dtype={'mu': jnp.bfloat16})",
    "8 bits": "optax.dtype_preserving(optax.adam(0.1), state_dtype=CODES, rounding='stochastic', seed=3)",
}
BEGIN = """
import pathlib, pickle, sys, cloudpickle, jax
import jax.numpy as jnp
import numpy as np
import treekit as tk
from treekit import optax

file = pathlib.Path(sys.argv[1])
params = {"w": jnp.linspace(-1, 1, 4096).reshape(64, 64).astype(jnp.bfloat16), "b": jnp.ones(3)}
CODES = {"mu": jnp.int8, "nu": jnp.uint8}

def two_steps(optimizer):
    optax.masked(optimizer, True).init(params)
    step = jax.jit(lambda params, state: optax.apply_gradients(optimizer, params, state, params))
    after, state = step(params, optimizer.init(params))
    assert any((after[name] != x).any() for name, x in params.items())
    return jax.tree.map(np.asarray, step(after, state))

def check_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert all(x.dtype == y.dtype and (x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
"""
DUMP = f"""
{BEGIN}
made = {{{", ".join(f"{name!r}: {text}" for name, text in OPTIMIZERS.items())}}}
results = {{name: two_steps(optimizer) for name, optimizer in made.items()}}
for name in ("chain", "8 bits"):
    check_same(two_steps(cloudpickle.loads(cloudpickle.dumps(made[name]))), results[name])
try:
    optax.dtype_preserving(cloudpickle.loads(cloudpickle.dumps(made["f32"])), state_dtype=jnp.bfloat16).init(params)
except TypeError as error:
    assert "is inside dtype_preserving" in str(error)
else:
    raise AssertionError("one inside another is not found after loading")
weighted = optax.MultiSteps(optax.adam(0.1), 2, weighted=True).init(params)
file.write_bytes(cloudpickle.dumps((jax.tree.map(np.asarray, weighted), results, made)))
print(*made, sep="\\n")
"""
# The states come first, and nothing else is imported before them.
LOAD = f"""
import pathlib, pickle, sys
weighted, results, made = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
{BEGIN}
check_same(weighted, jax.tree.map(np.asarray, optax.MultiSteps(optax.adam(0.1), 2, weighted=True).init(params)))
for name, optimizer in made.items():
    check_same(two_steps(optimizer), results[name])
print(*made, sep="\\n")
"""


def test_every_optimizer_and_its_state_survives(tmp_path: Path) -> None:
    """In processes of their own, since the functions that the tests check by beartype cannot be pickled."""
    env = {**os.environ, "XLA_FLAGS": COMPILE_FAST}
    for program in (DUMP, LOAD):
        command = [sys.executable, "-c", program, str(tmp_path / "optimizers")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert not done.returncode, done.stderr
        assert done.stdout.splitlines() == list(OPTIMIZERS)
