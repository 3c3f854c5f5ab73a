"""Errors of averages, hyperparameters in a state, precision, summary, and treekit.testing."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import treekit as tk
from tests.errors.mistake import Mistake, unchecked
from treekit import optax as tko
from treekit import training
from treekit.optax._kernel.misfit import StateError
from treekit.testing import check_donation, check_transformation
from treekit.testing._violations import LawsBroken

PARAMS: Any = {"b": jnp.ones(2, jnp.float32), "w": jnp.ones((64, 64), jnp.float32)}
WIDER = PARAMS | {"b": jnp.ones(3, jnp.float32)}
MEMBERS = {"w": jnp.ones((3, 2))}
ANYTHING: Any = tko  # whose arguments no checker reads
dtype_preserving, set_hyperparams = map(unchecked, (training.store_state, training.set_hyperparams))
monitor = unchecked(getattr(tko, "monitor", None))
MONITOR = ("optax.monitor",)
get_params_ema, evaluated = training.get_params_ema, tko.contrib.schedule_free_eval_params


def stochastic(tx: Any, state_dtype: Any = None) -> Any:
    return training.store_state(tx, state_dtype, rounding="stochastic")


def step(tx: Any, state: Any = None) -> Any:
    return tx.update(PARAMS, tx.init(PARAMS) if state is None else state, PARAMS)


def ratio(updates: Any, params: Any) -> Any:
    return optax.tree.norm(updates) / optax.tree.norm(params)


def grouped(table: Any, *args: Any, factory: Any = tko.adamw, **options: Any) -> Any:
    """The first state of an optimizer with groups."""
    return unchecked(training.param_groups)(
        factory, table, *(args or (() if "learning_rate" in options else (0.1,))), **options
    ).init(PARAMS)


def clipped(learning_rate: float) -> Any:
    return tko.chain(tko.clip_by_global_norm(1.0), tko.adamw(learning_rate))


def noisy(**options: Any) -> Any:
    return tko.chain(tko.add_noise(0.1, 0.5, key=0), tko.adamw(**options))


SGD, ADAM, EMA, FREE = tko.sgd(0.1), tko.adam(0.1), training.params_ema(0.5), tko.contrib.schedule_free_sgd(0.1)
ROUNDED = stochastic(ADAM, jnp.bfloat16)
OF_ADAM, OF_EMA = ADAM.init(PARAMS), EMA.init(PARAMS)
RATE, SCHEDULED = (tko.inject_hyperparams(tko.sgd)(rate).init(PARAMS) for rate in (0.1, lambda count: 0.1))

MISTAKES: dict[str, Mistake] = {
    # params_ema, get_params_ema and schedule_free_eval_params
    "a decay of 1": Mistake(lambda: training.params_ema(1), ValueError, "decay"),
    "a negative decay": Mistake(lambda: training.params_ema(-0.1), ValueError, "-0.1"),
    "several decays": Mistake(lambda: training.params_ema(jnp.ones(2)), TypeError, "decay"),
    "a schedule of decays above 1": Mistake(lambda: step(training.params_ema(lambda t: 1.5)), ValueError, "1.5"),
    "a schedule of no decays": Mistake(lambda: step(training.params_ema(lambda t: None)), TypeError, "params_ema"),
    "an average without params": Mistake(lambda: EMA.update(PARAMS, OF_EMA), ValueError, "params_ema"),
    "an update of in_nnx without params": Mistake(
        lambda: training.in_nnx(EMA).update(PARAMS, OF_EMA), ValueError, "update(updates, state, params)"
    ),
    "the average of a state without one": Mistake(
        lambda: get_params_ema(OF_ADAM, PARAMS), ValueError, "training.params_ema("
    ),
    "get_params_ema with its arguments swapped": Mistake(
        lambda: get_params_ema(PARAMS, [OF_EMA]), ValueError, "(state, params)"
    ),
    "the average of an ensemble": Mistake(
        lambda: get_params_ema(jax.vmap(EMA.init)(MEMBERS), MEMBERS), ValueError, "shape (3,)"
    ),
    "an average inside sam": Mistake(
        lambda: get_params_ema(optax.contrib.sam(optax.chain(SGD, EMA), SGD).init(PARAMS), PARAMS),
        ValueError,
        "opt_state.1",
    ),
    "two averages": Mistake(lambda: get_params_ema([OF_ADAM, OF_EMA, OF_EMA], PARAMS), ValueError, "1, 2"),
    "an average of other shapes": Mistake(lambda: get_params_ema(OF_EMA, WIDER), ValueError, "f32[3]"),
    "an average of another structure": Mistake(
        lambda: get_params_ema(OF_EMA, PARAMS | {"w": PARAMS}), ValueError, "at w"
    ),
    "schedule_free_eval_params without schedule_free": Mistake(
        lambda: evaluated(OF_ADAM, PARAMS), ValueError, "ScheduleFreeState"
    ),
    "schedule_free_eval_params with its arguments swapped": Mistake(
        lambda: evaluated(PARAMS, FREE.init(PARAMS)), ValueError, "(state, params)"
    ),
    "schedule_free before a transformation": Mistake(
        lambda: evaluated(optax.chain(FREE, optax.scale(0.5)).init(PARAMS), PARAMS), ValueError, "at 0"
    ),
    "schedule_free inside a wrapper that changes its updates": Mistake(
        lambda: evaluated(optax.contrib.mechanize(FREE).init(PARAMS), PARAMS), ValueError, "MechanicState"
    ),
    "an average of params of other keys": Mistake(
        lambda: ANYTHING.incremental_update({"w": 1.0}, PARAMS, 0.5),
        ValueError,
        "old_tensors does not fit new_tensors",
    ),
    "a copy of params of other keys": Mistake(
        lambda: ANYTHING.periodic_update({"w": 1.0}, PARAMS, 2, 2), ValueError, "old_tensors does not fit new_tensors"
    ),
    "several step sizes": Mistake(
        lambda: ANYTHING.incremental_update(PARAMS, PARAMS, jnp.ones(2)), TypeError, "step_size"
    ),
    # hyperparameters in a state
    "get_hyperparams of an optimizer": Mistake(
        lambda: training.get_hyperparams(ADAM), TypeError, "optimizer.init(params)"
    ),
    "set_hyperparams of Flax's optimizer": Mistake(
        lambda: set_hyperparams(nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), SGD, wrt=nnx.Param), rate=0.1),
        TypeError,
        "optimizer.opt_state =",
    ),
    "a hyperparameter of a state without any": Mistake(
        lambda: set_hyperparams(OF_ADAM, learning_rate=0.1), ValueError, "inject_hyperparams"
    ),
    "a number for the hyperparameters": Mistake(
        lambda: set_hyperparams(RATE, 0.1), TypeError, "set_hyperparams(state, learning_rate=0.1)"
    ),
    "a rate that is None": Mistake(
        lambda: set_hyperparams(RATE, learning_rate=None), TypeError, "f32[], and cannot become None"
    ),
    "the hyperparameters of a model": Mistake(
        lambda: training.get_hyperparams(eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))), TypeError, "found MLP"
    ),
    "a hyperparameter that is None": Mistake(
        lambda: training.get_hyperparams([RATE._replace(hyperparams={"learning_rate": None})]),
        TypeError,
        "0.learning_rate must be a number, found None",
    ),
    "a hyperparameter that is a dict": Mistake(
        lambda: training.get_hyperparams(RATE._replace(hyperparams={"learning_rate": {"a": 1, "b": 2}})),
        TypeError,
        "learning_rate must be a number, found dict",
    ),
    "a misspelt name": Mistake(lambda: set_hyperparams(RATE, learning_rat=0.1), ValueError, "'learning_rat'"),
    "a name for a key": Mistake(lambda: set_hyperparams([RATE], {"learning_rate": 1}), ValueError, "0.learning_rate"),
    "a rate with a schedule": Mistake(
        lambda: set_hyperparams([RATE, SCHEDULED], learning_rate=0.1), ValueError, "1.learning_rate"
    ),
    "a rate that is a string": Mistake(lambda: set_hyperparams(RATE, learning_rate="fast"), TypeError, "'fast'"),
    "a rate that is a bool": Mistake(lambda: set_hyperparams(RATE, learning_rate=True), TypeError, "True"),
    "a rate of another shape": Mistake(lambda: set_hyperparams(RATE, learning_rate=jnp.ones(2)), TypeError, "f32[2]"),
    "a rate that is NaN": Mistake(lambda: set_hyperparams(RATE, learning_rate=jnp.nan), ValueError, "nan"),
    "a rate that its dtype cannot hold": Mistake(
        lambda: set_hyperparams(RATE, learning_rate=2**24 + 1), TypeError, "16777217"
    ),
    # dtype_preserving
    "another rounding": Mistake(lambda: dtype_preserving(ADAM, rounding="up"), ValueError, "'up'"),
    "a float for a seed": Mistake(lambda: dtype_preserving(ADAM, seed=0.5), TypeError, "seed"),
    "a bool for a seed": Mistake(lambda: dtype_preserving(ADAM, seed=True), TypeError, "seed"),
    "a state of integers": Mistake(lambda: training.store_state(ADAM, jnp.int32), TypeError, "int32"),
    "moments in float8": Mistake(lambda: stochastic(ADAM, {"nu": jnp.float8_e5m2}), TypeError, "dtype['nu']"),
    "moments in 8 bits": Mistake(lambda: stochastic(ADAM, {"mu": jnp.int8}), TypeError, "dtype['mu']"),
    "a state in 8 bits": Mistake(lambda: stochastic(ADAM, jnp.uint8), TypeError, "uint8"),
    "two that store one state": Mistake(
        lambda: stochastic(tko.chain(SGD, ROUNDED)).init(PARAMS), TypeError, "store_state(dtype=None"
    ),
    "a state_dtype for no field of the state": Mistake(
        lambda: stochastic(ADAM, {"mu": jnp.bfloat16, "w": jnp.bfloat16}).init(PARAMS), ValueError, "'0.mu.b'"
    ),
    "a pattern behind a wider one": Mistake(
        lambda: stochastic(ADAM, {"**": jnp.float32, "**.w": jnp.bfloat16}).init(PARAMS), ValueError, "'**.w'"
    ),
    "an average in 16 bits": Mistake(
        lambda: stochastic(EMA, {"params_ema": jnp.bfloat16}).init(PARAMS), ValueError, "params_ema.b"
    ),
    "complex moments in 16 bits": Mistake(
        lambda: stochastic(ADAM, {"mu": jnp.bfloat16}).init(jnp.ones((64, 64), jnp.complex64)), ValueError, "complex64"
    ),
    "a state that was not made to be rounded": Mistake(
        lambda: step(ROUNDED, OF_ADAM), StateError, "fresh=['**.rounding_count'])[0]"
    ),
    "a state of f32, to store bf16": Mistake(
        lambda: step(training.store_state(ADAM, jnp.bfloat16), OF_ADAM),
        StateError,
        "0.mu.b",
    ),
    # monitor, scale_by_tree and summary
    "a measure without a name": Mistake(
        lambda: monitor(optax.tree.norm), TypeError, "{'norm': optax.tree.norm}", MONITOR
    ),
    "a measure that is a number": Mistake(lambda: monitor({"norm": 3}), TypeError, "'norm'", MONITOR),
    "a measure of three arguments": Mistake(
        lambda: monitor({"norm": lambda x, y, z: 1.0}), TypeError, "'norm'", MONITOR
    ),
    "a measure without its params": Mistake(
        lambda: monitor({"ratio": ratio}).update(PARAMS, monitor({"ratio": ratio}).init(PARAMS)),
        ValueError,
        "'ratio'",
        MONITOR,
    ),
    "a pattern for the key of a rate": Mistake(
        lambda: training.scale_by_tree({"**.b": 0.1}).init(PARAMS), ValueError, "path_labels({...}, default=1.0)"
    ),
    "a rate of a leaf that is a word": Mistake(
        lambda: training.scale_by_tree({"w": "fast", "b": 0.1}).init(PARAMS), TypeError, "rates.w"
    ),
    # param_groups
    "an option that the factory does not have": Mistake(
        lambda: grouped({"w": {"weight_decy": 0.0}}), ValueError, "weight_decay"
    ),
    "a row that is a number": Mistake(lambda: grouped({"w": 0.1}), TypeError, "the row 'w'"),
    "a table that is a list": Mistake(lambda: grouped([("w", {})]), TypeError, "is the table"),
    "no table": Mistake(lambda: unchecked(training.param_groups)(tko.adamw, 1e-3), TypeError, "is the table"),
    "an option of PyTorch": Mistake(lambda: grouped({"w": {"betas": (0.9, 0.99)}}), ValueError, "b1, b2"),
    "a mask for a number of a row": Mistake(
        lambda: grouped({"w": {"weight_decay": tk.path_mask("w")}}), TypeError, "the row 'w': weight_decay"
    ),
    "the state of another table": Mistake(
        lambda: step(training.param_groups(tko.adamw, {"w": {"learning_rate": 0.5}}, 0.1), grouped({"b": {"b1": 0.5}})),
        StateError,
        "the state has b_b1; it lacks w_learning_rate",
    ),
    "a row for a number": Mistake(lambda: grouped({3: {}}), TypeError, "found 3"),
    "a row without a name": Mistake(lambda: grouped({tk.leaf_mask(lambda x: True): {"b1": 0.1}}), ValueError, "'name'"),
    "a name of a row that is a number": Mistake(
        lambda: grouped({"w": {"b1": 0.1, "name": 1}}), ValueError, "an identifier, found 1"
    ),
    "two rows of one name": Mistake(
        lambda: grouped({"w": {"b1": 0.1}, "**.w": {"b2": 0.1}}), ValueError, "the rows 'w' and '**.w'"
    ),
    "a row for a function of the params": Mistake(
        lambda: grouped({jax.tree.leaves: {"b1": 0.1}}), TypeError, "a mask of path_mask, leaf_mask or trainable"
    ),
    "None for an option of a row": Mistake(
        lambda: grouped({"w": {"learning_rate": None}}), TypeError, "the row 'w': learning_rate"
    ),
    "an array for an option of a row": Mistake(
        lambda: grouped({"w": {"learning_rate": jnp.ones(3)}}), TypeError, "w_learning_rate must be one number"
    ),
    "a mask in a table that selects nothing": Mistake(
        lambda: grouped({tk.path_mask("w") & tk.leaf_mask(lambda x: x.ndim > 5): None}),
        ValueError,
        "selects no parameter",
    ),
    "a regular expression as a string": Mistake(lambda: grouped({"w|b": None}), ValueError, "re.compile"),
    "the name of a row that is an option with another": Mistake(
        lambda: grouped({"b": {"weight_decay": 0.0, "name": "adam"}}, factory=tko.contrib.muon),
        ValueError,
        "adam_weight_decay",
    ),
    "times of what is not a number": Mistake(
        lambda: grouped({"w": {"mu_dtype": training.times(2)}}), TypeError, "mu_dtype"
    ),
    "times of a string": Mistake(lambda: unchecked(training.times)("2"), TypeError, "'2'"),
    "times as a default": Mistake(lambda: grouped({}, training.times(2)), TypeError, "the rows of the table"),
    "an option that is a string": Mistake(lambda: grouped({"w": {"learning_rate": "0.1"}}), TypeError, "learning_rate"),
    "a row that selects nothing": Mistake(lambda: grouped({"x.**": None}), ValueError, "'x.**'"),
    "an option that earlier rows decide": Mistake(
        lambda: grouped({"**": {"b1": 0.1}, "w": {"b1": 0.2}}), ValueError, "b1 of the row 'w'"
    ),
    "an option for what is frozen": Mistake(
        lambda: grouped({"w": None, "**.w": {"b1": 0.2}}), ValueError, "b1 of the row '**.w'"
    ),
    "a row with another structure of the state": Mistake(
        lambda: grouped({"w": {"momentum": 0.9}}, factory=tko.sgd), ValueError, "momentum of the row 'w'"
    ),
    "a mask in a row": Mistake(
        lambda: grouped({"w": {"mask": {"w": True, "b": False}}}), ValueError, "mask of the row 'w'"
    ),
    "a table inside of a table": Mistake(
        lambda: training.param_groups(
            lambda rate: training.param_groups(tko.sgd, {"b": None}, rate),
            {"w": {"rate": 2.0}},
            rate=1.0,
            leafwise=True,
        ).init(PARAMS),
        ValueError,
        "Write one table",
    ),
    "an optimizer for a factory": Mistake(
        lambda: unchecked(training.param_groups)(ADAM, {}), TypeError, "param_groups(optax.adamw"
    ),
    "groups of what looks at all params": Mistake(
        lambda: grouped({"w": {"beta3": 0.5}}, factory=tko.contrib.prodigy), TypeError, "optax.partition"
    ),
    "groups of a factory that may look at all params": Mistake(
        lambda: grouped({"w": {"learning_rate": 0.5}}, factory=clipped), TypeError, "leafwise=True"
    ),
    "groups that cannot share a key": Mistake(
        lambda: grouped({"w": {"learning_rate": 0.5}}, factory=noisy, leafwise=True, learning_rate=0.1),
        TypeError,
        "rng_key",
    ),
    "a row for what all params share": Mistake(
        lambda: grouped({"w": {"ns_coeffs": (1.0, 2.0, 3.0)}}, factory=tko.contrib.muon), TypeError, "ns_coeffs"
    ),
    "rates for the layers of a stack without its other axes": Mistake(
        lambda: training.scale_by_tree({"w": jnp.ones((64, 3)), "b": 0.1}).init(PARAMS), ValueError, "rates.w"
    ),
    "a schedule of several rates": Mistake(
        lambda: step(training.scale_by_tree({"w": lambda count: jnp.ones(2), "b": 0.1})), TypeError, "rates.w"
    ),
    "the state for the params of summary": Mistake(
        lambda: training.summary(ADAM, {"opt": OF_ADAM}), TypeError, "opt.0"
    ),
    "the step for the state of summary": Mistake(lambda: training.summary(ADAM, PARAMS, 100), TypeError, "step=100"),
    "a summary at a step that is not an int": Mistake(
        lambda: training.summary(ADAM, PARAMS, step=0.5), ValueError, "found 0.5"
    ),
    "a summary at a step before the first": Mistake(
        lambda: training.summary(ADAM, PARAMS, step=-1), ValueError, "found -1"
    ),
    "a summary at a step after the last": Mistake(
        lambda: training.summary(ADAM, PARAMS, step=2**31), ValueError, "found 2147483648"
    ),
    "a summary at a step, with the state of another optimizer": Mistake(
        lambda: training.summary(ADAM, PARAMS, [RATE], step=1), ValueError, "0.learning_rate"
    ),
    # treekit.testing
    "check_transformation of a function": Mistake(
        lambda: unchecked(check_transformation)(optax.adam, PARAMS), TypeError, "adam(...)"
    ),
    "a transformation that keeps the params": Mistake(
        lambda: check_transformation(
            optax.GradientTransformation(lambda params: params, optax.identity().update), PARAMS
        ),
        LawsBroken,
        "state.w",
    ),
    "a law that does not exist": Mistake(
        lambda: check_transformation(ADAM, PARAMS, without=("moments",)), ValueError, "'moments'"
    ),
    "check_donation of a result": Mistake(
        lambda: unchecked(check_donation)(jnp.ones(2)), TypeError, "check_donation(step, params, state)"
    ),
    "check_donation of a model, with the step": Mistake(
        lambda: check_donation(eqx.nn.Lambda(abs), abs), ValueError, "(f, *args)"
    ),
    "check_donation without an array": Mistake(lambda: check_donation(abs, 1.0), ValueError, "no array"),
    "a batch that is donated": Mistake(
        lambda: check_donation(lambda params, batch: params - batch.mean(), jnp.ones(3), jnp.ones(5)),
        AssertionError,
        "batch",
    ),
}
