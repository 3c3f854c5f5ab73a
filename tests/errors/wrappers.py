"""Errors of masked, partition, inject_hyperparams, MultiSteps, lbfgs, and sharded params."""

import functools
from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from optax import LookaheadParams

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from treekit import optax as tko
from treekit import training
from treekit.optax._kernel.misfit import StateError

PARAMS = {"w": jnp.ones((2, 2)), "bias": jnp.ones(2)}
FROZEN_DICT = freeze(PARAMS)
VARIABLES = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
SGD: Any = tko.sgd(0.1)
LBFGS = tko.lbfgs()
SEARCH = tko.scale_by_backtracking_linesearch(5)
CONTRIB: Any = tko.contrib  # for arguments that type checkers refuse
MUON: Any = tko.contrib.scale_by_muon()
NO_VALUE = jax.errors.TracerBoolConversionError
PAIRS = tko.lookahead(SGD, 5, 0.5)
ROUNDS: Any = tko.MultiSteps(SGD, 2)


def masked(mask: Any, params: Any = PARAMS) -> Any:
    return tko.masked(SGD, mask).init(params)


def rounds(every_k: Any = 2, extra: Any = (), **options: Any) -> Any:
    """A step of MultiSteps."""
    steps: Any = tko.MultiSteps(SGD, every_k, **options)
    return steps.update(PARAMS, steps.init(PARAMS), PARAMS, **dict(extra))


def injected(rate: Any, **options: Any) -> Any:
    return tko.inject_hyperparams(tko.adam, **options)(rate)


def resumed(now: Any, then: Any, params: Any = PARAMS) -> Any:
    """A step of one optimizer with the state of another."""
    return now.update(params, then.init(params), params)


def branching(count: Any) -> float:
    return 0.1 if count < 10 else 0.01


def jitted(tx: Any, **extra: Any) -> Any:
    return jax.jit(lambda state: tx.update(PARAMS, state, PARAMS, **extra))(tx.init(PARAMS))


def loss(params: Any) -> Any:
    return params["w"].sum()


def search(grad: Any, value: Any = 1.0, value_fn: Any = loss) -> Any:
    return LBFGS.update(PARAMS, LBFGS.init(PARAMS), PARAMS, value=value, grad=grad, value_fn=value_fn)


def gathers(*rates: Any) -> Any:
    return tko.sgd(*rates)


@functools.wraps(tko.sgd)
def of_any_arguments(*args: Any, **kwargs: Any) -> Any:
    """It would accept more than the signature that it shows."""
    return tko.sgd(0.1)


def by_keyword(**rates: Any) -> Any:
    return tko.sgd(**rates)


MISTAKES: dict[str, Mistake] = {
    "a list of patterns for a mask": Mistake(
        lambda: masked(["**.w", "bias"]), ValueError, "treekit.path_mask('**.w', 'bias')"
    ),
    "optimizers for labels": Mistake(
        lambda: tko.partition({"a": SGD}, {"w": SGD, "bias": SGD}).init(PARAMS), ValueError, "keys of transforms"
    ),
    "a bool for a function of the step": Mistake(
        lambda: unchecked(tko.conditionally_mask)(SGD, True), TypeError, "should_transform_fn"
    ),
    "a round without end": Mistake(lambda: tko.MultiSteps(SGD, 2**40), ValueError, "2**31"),
    "has_updated of another state": Mistake(
        lambda: unchecked(tko.MultiSteps.has_updated)(ROUNDS, SGD.init(PARAMS)), TypeError, "MultiSteps"
    ),
    # What is frozen.
    "all that can be trained is frozen": Mistake(
        lambda: tko.transforms.selective_transform(SGD, freeze_mask=tk.trainable),
        ValueError,
        "freeze_mask=treekit.trainable",
    ),
    "a function of the params inside of flatten": Mistake(
        lambda: tko.flatten(tko.adamw(0.1, mask=lambda params: params)).init(PARAMS), ValueError, "optax.flatten"
    ),
    "a pattern inside of flatten": Mistake(
        lambda: tko.flatten(tko.masked(SGD, tk.path_mask("w"))).init(PARAMS), ValueError, "masked(flatten(tx), mask)"
    ),
    "a table inside of flatten": Mistake(
        lambda: tko.flatten(training.param_groups(tko.sgd, {"w": {"learning_rate": 1.0}}, learning_rate=0.1)).init(
            PARAMS
        ),
        ValueError,
        "param_groups",
    ),
    "a label that is misspelt": Mistake(
        lambda: tko.partition({"decay": SGD}, {"w": "decay", "bias": "deacy"}).init(PARAMS),
        ValueError,
        "bias is 'deacy'",
    ),
    "None for a label": Mistake(
        lambda: unchecked(tko.partition)({"train": SGD, "freeze": None}, "train"), TypeError, "optax.set_to_zero()"
    ),
    "a function that makes transformations for a label": Mistake(
        lambda: unchecked(tko.partition)({"train": SGD, "freeze": tko.set_to_zero}, "train"),
        TypeError,
        "transforms['freeze']",
    ),
    "a mask that does not fit variables of Flax": Mistake(
        lambda: masked({"bias": False}, VARIABLES), ValueError, "treekit.path_mask"
    ),
    "a mask that misses a key of an nnx.State": Mistake(
        lambda: masked({"bias": False, "kernl": True}, VARIABLES), ValueError, "bias, kernl, and the tree it is for 2"
    ),
    "a mask with a key too many for a FrozenDict": Mistake(
        lambda: masked({"w": True, "bias": True, "b": True}, FROZEN_DICT), ValueError, "3 children: b, bias, w"
    ),
    "a mask with keys of one name in another order": Mistake(
        lambda: masked(OrderedDict([(1, True), ("1", False)]), OrderedDict([("1", PARAMS["w"]), (1, PARAMS["bias"])])),
        ValueError,
        "it has (1, '1'), and the tree it is for ('1', 1)",
    ),
    "a number in a mask": Mistake(lambda: masked({"w": True, "bias": 1.5}), TypeError, "bias"),
    "a pattern for a mask": Mistake(lambda: masked("**.w"), TypeError, "treekit.path_mask"),
    "the arguments of MultiSteps in the other order": Mistake(
        lambda: unchecked(tko.MultiSteps.__init__)(object.__new__(tko.MultiSteps), 4, SGD),
        ValueError,
        "every_k_schedule",
    ),
    "a schedule of no steps": Mistake(lambda: rounds(lambda count: 0), ValueError, "every_k_schedule"),
    "a schedule of rates for steps": Mistake(lambda: rounds(lambda count: 2.5), TypeError, "every_k_schedule"),
    "gradients of another shape than before": Mistake(
        lambda: ROUNDS.update({"bias": jnp.ones(3)}, ROUNDS.init({"bias": jnp.ones(2)})), StateError, "acc_grads.bias"
    ),
    "a bool for a function that skips": Mistake(
        lambda: unchecked(tko.MultiSteps.__init__)(ROUNDS, SGD, 2, should_skip_update_fn=True),
        TypeError,
        "optax.skip_not_finite; found True",
    ),
    "whether to skip, without a state": Mistake(
        lambda: rounds(should_skip_update_fn=lambda *_: jnp.array(True)), TypeError, "returns (skip, state)"
    ),
    "whether to skip each element": Mistake(
        lambda: rounds(should_skip_update_fn=lambda *_: (jnp.ones(3), ())), ValueError, "(3,)"
    ),
    "a weight that nothing takes": Mistake(lambda: rounds(extra={"weight": 1.0}), TypeError, "weighted=True"),
    "no weight": Mistake(lambda: rounds(weighted=True), TypeError, "weight must"),
    "a weight for each element": Mistake(
        lambda: rounds(extra={"weight": jnp.ones(3)}, weighted=True), TypeError, "f32[3]"
    ),
    "a negative weight": Mistake(lambda: rounds(extra={"weight": -1.0}, weighted=True), ValueError, "-1.0"),
    "an optimizer for its factory, to be injected": Mistake(
        lambda: unchecked(tko.inject_hyperparams)(tko.adam(1e-3)), TypeError, "inject_hyperparams(optax.adam)(1e-3)"
    ),
    "lookahead without the params": Mistake(
        lambda: PAIRS.update(PARAMS, PAIRS.init(LookaheadParams.init_synced(PARAMS))),
        ValueError,
        "update(updates, state, params)",
    ),
    "the params of lookahead without a copy": Mistake(
        lambda: PAIRS.init(PARAMS), TypeError, "LookaheadParams.init_synced(params)"
    ),
    "the arguments next to the factory": Mistake(
        lambda: unchecked(tko.inject_hyperparams)(tko.adam, 1e-3), TypeError, "0.001"
    ),
    "a static argument that is misspelt": Mistake(lambda: injected(0.1, static_args="beta"), ValueError, "'beta'"),
    "an argument both static and injected": Mistake(
        lambda: injected(0.1, static_args=("b1", "b2"), only="b1"), ValueError, "b1"
    ),
    "arguments without names": Mistake(lambda: tko.inject_hyperparams(gathers)(0.1), TypeError, "*rates of gathers"),
    "an argument that the signature of a factory does not have": Mistake(
        lambda: tko.inject_hyperparams(of_any_arguments)(0.1, rate=0.2), TypeError, "'rate'"
    ),
    "an injected argument that is not a number": Mistake(
        lambda: injected(0.1, only="nesterov").init(PARAMS), TypeError, "'nesterov'"
    ),
    "a function that may be a schedule or not": Mistake(
        lambda: tko.inject_hyperparams(tko.contrib.adopt)(0.1, clip_value_fn=jnp.tanh),
        TypeError,
        "static_args='clip_value_fn'",
    ),
    "a function that is not a schedule": Mistake(
        lambda: injected(lambda params: PARAMS["kernel"]).init(PARAMS), TypeError, "KeyError: 'kernel'"
    ),
    "a schedule that returns a vector": Mistake(
        lambda: injected(lambda count: jnp.ones(3)).init(PARAMS), TypeError, "f32[3]"
    ),
    "a number that its dtype cannot hold": Mistake(
        lambda: injected(2**24 + 1).init(PARAMS), TypeError, "'learning_rate' of adam"
    ),
    "a state with other hyperparameters": Mistake(
        lambda: resumed(injected(0.1, only="b1"), injected(0.1, only="b2")), StateError, "the state has b2; it lacks b1"
    ),
    "a schedule where a number was": Mistake(
        lambda: resumed(injected(lambda count: 0.1), injected(0.1)), StateError, "learning_rate"
    ),
    "a number where a schedule was": Mistake(
        lambda: resumed(injected(0.1), injected(lambda count: 0.1)), StateError, "learning_rate"
    ),
    "a number for sm3": Mistake(
        lambda: resumed(tko.sm3(0.1), tko.sm3(0.1), {**PARAMS, "rate": jnp.ones(())}),
        IndexError,
        "scale_by_sm3 of Optax (optax._src.transform) for the leaf rate, which is f32[]",
    ),
    "a tree for scale_by_muon, which takes an array": Mistake(
        lambda: resumed(MUON, MUON),
        ValueError,
        "weight_dimension_numbers=None",
        needs=("optax.contrib.MuonDimensionNumbers",),
    ),
    "coefficients that scale_by_muon does not take": Mistake(
        lambda: CONTRIB.scale_by_muon((1.0,)).init(PARAMS),
        ValueError,
        "ns_coeffs=(1.0,)",
        needs=("optax.contrib.MuonDimensionNumbers",),
    ),
    "a number for a line search": Mistake(lambda: unchecked(tko.lbfgs)(linesearch=3), TypeError, "linesearch of lbfgs"),
    "lbfgs without params": Mistake(lambda: LBFGS.update(PARAMS, LBFGS.init(PARAMS)), ValueError, "params"),
    "a state of lbfgs with another memory": Mistake(
        lambda: resumed(tko.lbfgs(memory_size=3, linesearch=None), tko.lbfgs(linesearch=None)),
        StateError,
        "memory_size=3",
    ),
    "an argument grad of other keys": Mistake(lambda: search({"w": PARAMS["w"]}), ValueError, "bias"),
    "value and grad swapped": Mistake(
        lambda: search(jnp.ones(()), PARAMS), ValueError, "the argument grad f32[]. Are value and grad swapped?"
    ),
    "an argument value that is None": Mistake(lambda: search(PARAMS, None), TypeError, "value must"),
    "a value for value_fn": Mistake(
        lambda: search(PARAMS, 1.0, jnp.ones(())), TypeError, "value_fn must be a function, found f32[]"
    ),
    "a value_fn that returns its gradient too": Mistake(
        lambda: search(PARAMS, 1.0, jax.value_and_grad(loss)), TypeError, "value_fn must return a real number"
    ),
    "an argument grad that is None": Mistake(lambda: search(None), ValueError, "argument grad"),
    "an argument grad of another shape": Mistake(
        lambda: search({**PARAMS, "bias": jnp.ones((1, 2))}), ValueError, "bias"
    ),
    "a line search that stores no gradient": Mistake(
        lambda: tko.value_and_grad_from_state(jnp.sum)(PARAMS, state=SEARCH.init(PARAMS)), ValueError, "store_grad=True"
    ),
}
