"""Optimizers survive cloudpickle, as Ray, submitit and joblib use it, into another process."""

import subprocess
import sys
from pathlib import Path

OPTIMIZERS = {
    "adam": "optax.adam(optax.cosine_decay_schedule(0.1, 10))",
    "chain": "optax.chain(optax.clip(1.0), optax.adam(0.1), optax.params_ema(0.9))",
    "filtered": "optax.filtered(optax.adam(0.1))",
    "masked": "optax.masked(optax.adam(0.1), {'w': True, 'b': False})",
    "freeze": "optax.chain(optax.sgd(0.1), optax.freeze(tk.path_mask('w')))",
    "partition": "optax.partition({0: optax.sgd(0.1), 1: optax.set_to_zero()}, tk.path_labels({'w': 0}, default=1))",
    "multi_steps": "optax.MultiSteps(optax.adam(0.1), 1)",
    "apply_if_finite": "optax.apply_if_finite(optax.adam(0.1), 2)",
    "conditionally": "optax.conditionally_mask(optax.adam(0.1), lambda step: step >= 0)",
    "inject": "optax.inject_hyperparams(optax.adam)(0.1)",
    "lbfgs": "optax.lbfgs(linesearch=None)",
    "monitor": "optax.chain(optax.monitor({'norm': optax.tree.norm}), optax.sgd(0.1))",
    "scale_by_tree": "optax.scale_by_tree({'w': 0.1, 'b': 0.2})",
}
MAKE = f"""
import sys, cloudpickle
import treekit as tk
from treekit import optax
optimizers = {{{", ".join(f"{name!r}: {text}" for name, text in OPTIMIZERS.items())}}}
cloudpickle.dump(optimizers, open(sys.argv[1], "wb"))
"""
LOAD = """
import sys, cloudpickle
optimizers = cloudpickle.load(open(sys.argv[1], "rb"))
"""
STEP = """
import jax.numpy as jnp
from treekit import optax
params = {"w": jnp.ones(2), "b": jnp.ones(2)}
for name, optimizer in optimizers.items():
    after, _ = optax.apply_gradients(optimizer, params, optimizer.init(params), params)
    optax.masked(optimizer, True).init(params)
    print(name, *map(float, (after["w"][0], after["b"][0])))
"""


def test_every_optimizer_survives(tmp_path: Path) -> None:
    """In processes of their own, since the functions that the tests check by beartype cannot be pickled."""

    def run(program: str) -> list[str]:
        command = [sys.executable, "-c", program, str(tmp_path / "optimizers")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout.splitlines()

    made = run(MAKE + STEP)
    assert [line.split()[0] for line in made] == list(OPTIMIZERS)
    assert not [line for line in made if line.split()[1:] == ["1.0", "1.0"]]
    assert run(LOAD + STEP) == made
