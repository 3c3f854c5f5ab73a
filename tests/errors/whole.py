"""Mistakes at the border of two libraries: whose state, whose module and whose function it is, and two models."""

import itertools
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from treekit import optax as tko
from treekit import training
from treekit.optax._kernel.misfit import StateError

PARAMS = {"layers": [{"w": jnp.ones((2, 2))}]}
ADAM: Any = tko.adam(0.1)
INJECTED: Any = tko.inject_hyperparams(tko.adam)(0.1)
WITHOUT_B1 = INJECTED.init(PARAMS)
WITHOUT_B1.hyperparams["b1"] = None
NNX = nnx.Linear(2, 3, rngs=nnx.Rngs(0))


def is_more(params: Any) -> Any:
    return jax.tree.map(lambda x: bool(x.mean() > 1), params)


class NoTree(nnx.Module, pytree=False):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(2))


def of_class(params: Any) -> Any:
    return jax.tree.map(lambda x: isinstance(x, nnx.Variable), params, is_leaf=lambda x: isinstance(x, nnx.Variable))


BY_VALUE = tko.masked(ADAM, is_more)

# Each is given the state of the one before it, as in a program that was changed and resumes.
OPTIMIZERS: dict[str, Any] = {
    "adam": ADAM,
    "MultiSteps": tko.MultiSteps(ADAM, 2),
    "chain": tko.chain(tko.clip(1.0), ADAM),
    "inject_hyperparams": INJECTED,
    "apply_if_finite": tko.apply_if_finite(ADAM, 2),
}

MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
WIDER = eqx.nn.MLP(2, 2, 8, 1, key=jax.random.key(0))


def step(tx: Any, state: Any = None) -> Any:
    return tx.update(PARAMS, tx.init(PARAMS) if state is None else state, PARAMS)


MISTAKES: dict[str, Mistake] = {
    **{
        f"the state of {before} in {after}": Mistake(
            partial(step, OPTIMIZERS[after], OPTIMIZERS[before].init(PARAMS)),
            StateError,
            type(OPTIMIZERS[after].init(PARAMS)).__name__,
        )
        for before, after in itertools.pairwise([*OPTIMIZERS, "adam"])
    },
    "a hyperparameter that became None": Mistake(partial(step, INJECTED, WITHOUT_B1), StateError, "hyperparams.b1"),
    "a module of NNX that shares a variable": Mistake(
        lambda: ADAM.init([NNX, NNX]), TypeError, "a variable Param that is in 2 places, 0.bias, 1.bias"
    ),
    "the nnx.State of nnx.grad for a module": Mistake(
        lambda: ADAM.update(nnx.state(NNX), ADAM.init(NNX), NNX), ValueError, "jax.grad(loss, allow_int=True)"
    ),
    "a module of NNX in update": Mistake(
        lambda: ADAM.update(NNX, ADAM.init(nnx.state(NNX, nnx.Param)), NNX), StateError, "nnx.state(model, nnx.Param)"
    ),
    "variables of Flax of which none is trained": Mistake(
        lambda: ADAM.init({"norm": nnx.BatchStat(jnp.ones(2))}), TypeError, "such as that at norm"
    ),
    "variables that are not trained in an nnx.Optimizer": Mistake(
        lambda: ADAM.update(
            nnx.State({"b": jnp.ones(2), "w": jnp.ones(2)}),
            ADAM.init(nnx.State({"b": nnx.BatchStat(jnp.ones(2)), "w": nnx.Param(jnp.ones(2))})),
            nnx.State({"b": jnp.ones(2), "w": jnp.ones(2)}),
        ),
        StateError,
        "its `wrt` must select",
    ),
    "a module of NNX that is not a pytree": Mistake(
        lambda: ADAM.init({"net": NoTree(), **PARAMS}), TypeError, "NoTree at net, whose class is not a pytree"
    ),
    "a class of variables in a mask for values": Mistake(
        lambda: tk.path_mask(nnx.Param)(nnx.State({"w": jnp.ones(2)})), ValueError, "treekit.tree_find(model, Param)"
    ),
    "a class of variables in a table of param_groups for values": Mistake(
        lambda: training.param_groups(tko.adam, {nnx.Param: {"b1": 0.5}}, 0.1).init(nnx.State({"w": jnp.ones(2)})),
        ValueError,
        "treekit.tree_find(model, Param)",
    ),
    "a mask function that asks for a class of variables": Mistake(
        lambda: tko.masked(ADAM, of_class).init(nnx.State({"w": nnx.Param(jnp.ones(2))})), ValueError, "nnx.state(model"
    ),
    "a class of modules in a mask for an nnx.state": Mistake(
        lambda: tk.path_mask(nnx.Linear)(nnx.state(NNX)), ValueError, "treekit.tree_find(model, Linear)"
    ),
    "a class of modules in labels for an nnx.state": Mistake(
        lambda: tk.path_labels({nnx.Linear: 1})(nnx.state(NNX)), ValueError, "treekit.tree_find(model, Linear)"
    ),
    "a mask that looks at values": Mistake(
        lambda: BY_VALUE.update({"w": jnp.ones(2)}, BY_VALUE.init({"w": jnp.ones(2)}), {"w": 2 * jnp.ones(2)}),
        TypeError,
        "shapes and dtypes",
    ),
    "partition of treekit.optax for that of treekit": Mistake(
        lambda: unchecked(tko.partition)(MODEL, eqx.is_array), TypeError, "treekit.partition"
    ),
    "gradients of another model": Mistake(
        lambda: ADAM.update(eqx.filter(WIDER, eqx.is_array), ADAM.init(MODEL), MODEL), ValueError, "width_size"
    ),
    "params of another model than the average": Mistake(
        lambda: training.get_params_ema(training.params_ema(0.9).init(WIDER), MODEL), ValueError, "width_size"
    ),
    "a function of Optax that takes no None": Mistake(
        lambda: tko.contrib.galore(1e-2, rank=2).init({"w": jnp.eye(4), "f": jnp.tanh}),
        AttributeError,
        "optax.contrib._galore",
        needs=("optax.contrib.galore",),
    ),
}
