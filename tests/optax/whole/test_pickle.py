"""Optimizers survive cloudpickle, as Ray, submitit and joblib use it, in the same process and into another one."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.compile_fast import COMPILE_FAST
from tests.optax.old_states import OPTIMIZERS
from tests.releases import has

ROOT = Path(__file__).parents[3]
MORE = {
    "freeze": "optax.chain(optax.sgd(0.1), optax.transforms.freeze(IS_WEIGHT))",
    "conditionally": "optax.conditionally_mask(optax.adam(0.1), lambda step: step >= 0)",
    "scale_by_tree": "training.scale_by_tree({'first': 0.1, 'second': 0.2})",
    "f32": "training.store_state(optax.adam(0.1), jnp.float32)",
    "by name": "training.store_state(optax.adam(0.1), {'mu': jnp.bfloat16})",
}
NAMES = [name for name in (*OPTIMIZERS, *MORE) if name != "averaged" or has("optax.monitor")]
BEGIN = """
import pathlib, pickle, sys, cloudpickle, jax
import numpy as np
from tests.optax.old_states import *  # jnp, optax and all that is defined there

def two_updates(name, optimizer):
    params = start("rounded")[1]
    optax.masked(optimizer, True).init(params)
    step = jax.jit(lambda state: update(name, optimizer, state, params))
    return jax.tree.map(np.asarray, step(step(optimizer.init(params))[1]))

def check_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert all(x.dtype == y.dtype and (x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
"""
DUMP = f"""
{BEGIN}
more = {{{", ".join(f"{name!r}: lambda: {text}" for name, text in MORE.items())}}}
made = {{name: (OPTIMIZERS | more)[name]() for name in {NAMES}}}
results = {{name: two_updates(name, optimizer) for name, optimizer in made.items()}}
for name in ("groups", "rounded"):
    check_same(two_updates(name, cloudpickle.loads(cloudpickle.dumps(made[name]))), results[name])
try:
    inner = cloudpickle.loads(cloudpickle.dumps(made["f32"]))
    training.store_state(inner, jnp.bfloat16).init(start("groups")[1])
except TypeError as error:
    assert "store_state" in str(error)
else:
    raise AssertionError("one inside another is not found after loading")
pathlib.Path(sys.argv[1]).write_bytes(cloudpickle.dumps((results, made)))
print(*made, sep="\\n")
"""
# The states come first, and nothing is imported before them.
LOAD = f"""
import pathlib, pickle, sys
from treekit import training
results, made = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
{BEGIN}
for name, optimizer in made.items():
    check_same(two_updates(name, optimizer), results[name])
print(*made, sep="\\n")
"""


def test_every_optimizer_and_its_state_survives(tmp_path: Path) -> None:
    """In processes of their own, since the functions that the tests check by beartype cannot be pickled."""
    env = {**os.environ, "XLA_FLAGS": COMPILE_FAST}
    for program in (DUMP, LOAD):
        command = [sys.executable, "-c", program, str(tmp_path / "optimizers")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
        assert not done.returncode, done.stderr
        assert done.stdout.splitlines() == NAMES
