"""Errors of what each transformation may raise: gradients, states, missing parts, extra arguments and apply_updates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.errors.mistake import Mistake, unchecked
from treekit import optax as tko
from treekit import training
from treekit.optax._kernel.misfit import StateError

ONES, COMPLEX = jnp.ones(2), jnp.ones(2, jnp.complex64)
PARAMS: dict[str, Any] = {"w": jnp.ones((2, 3)), "b": ONES}
LAYERS = {"out": ONES, "layer": PARAMS}
QUANTIZED = {"w": ONES, "q": jnp.ones(3, jnp.int8)}
NUMBERS = {"w": ONES, "drop": eqx.nn.Dropout(0.5)}
SMALLER = {**PARAMS, "w": jnp.ones((2, 2))}
ADAM: Any = tko.adam(0.1)
TRACE: Any = tko.trace(0.9)
STATE = ADAM.init(PARAMS)
SUMS: Any = tko.MultiSteps(ADAM, 2)
LOOKAHEAD = tko.lookahead(tko.sgd(0.1), sync_period=2, slow_step_size=0.5)
OPTAX: Any = tko  # for arguments that type checkers refuse
UNCHECKED: Any = training


def returning(updates: Any, state: Any, initial: Any) -> Any:
    """A transformation that returns what it is told to."""

    def update(*_: Any, **__: Any) -> Any:
        return updates, state

    return training.store_state(optax.GradientTransformation(lambda params: initial, update))


def step(tx: Any, grads: Any, params: Any = PARAMS, state: Any = None) -> Any:
    return tx.update(grads, tx.init(params) if state is None else state, params)


class Quantized:
    """What a library has for an array, and JAX does not know."""

    shape, dtype = (3,), jnp.dtype("int8")


def members(state: Any) -> Any:
    """A state whose counts are those of two members of an ensemble."""
    return jax.tree.map(lambda x: jnp.stack([x, x]) if x.shape == () else x, state)


MISTAKES: dict[str, Mistake] = {
    # What is given to init.
    "a state for the params": Mistake(lambda: ADAM.init(STATE), TypeError, "init"),
    "an optimizer for the params": Mistake(lambda: ADAM.init(ADAM), TypeError, "an optimizer"),
    "a class for a model": Mistake(lambda: ADAM.init(eqx.nn.MLP), TypeError, "MLP"),
    "a name for the params": Mistake(lambda: ADAM.init("weights"), TypeError, "'weights'"),
    "integers for the params": Mistake(lambda: ADAM.init({"n": jnp.arange(2)}), TypeError, "n, which is i32[2]"),
    "a missing gradient behind flatten": Mistake(
        lambda: step(tko.flatten(ADAM), {**PARAMS, "b": None}, PARAMS), ValueError, "0.mu of the state"
    ),
    "an object with a shape and a dtype beside arrays": Mistake(
        lambda: ADAM.init({"w": ONES, "q": Quantized()}), TypeError, "q, which is Quantized"
    ),
    "None for all updates": Mistake(lambda: ADAM.update(None, STATE, PARAMS), ValueError, "None"),
    "shapes for an average": Mistake(
        lambda: training.params_ema(0.9).init(jax.eval_shape(lambda: PARAMS)), TypeError, "jax.eval_shape"
    ),
    # The arguments of what makes transformations.
    "a rate that is a string": Mistake(lambda: OPTAX.adam("1e-3"), TypeError, "learning_rate of adam"),
    "a mask for the second argument": Mistake(
        lambda: OPTAX.adamw(1e-3, lambda params: params), TypeError, "b1 of adamw"
    ),
    "a mask in the place of a number": Mistake(
        lambda: OPTAX.adamw(1e-3, {"w": True}), TypeError, "adamw(..., mask=mask)"
    ),
    "params for a rate": Mistake(lambda: OPTAX.sgd(PARAMS), TypeError, "learning_rate of sgd"),
    "numbers for each leaf": Mistake(lambda: OPTAX.adamw(1e-3, weight_decay={"w": 0.1}), TypeError, "param_groups"),
    "an optimizer for a number": Mistake(lambda: OPTAX.clip_by_global_norm(ADAM), TypeError, "optax.chain"),
    "None for a number": Mistake(lambda: OPTAX.adam(1e-3, None), TypeError, "b1 of adam"),
    "NaN for a rate": Mistake(lambda: tko.sgd(float("nan")), TypeError, "learning_rate of sgd"),
    "half a step": Mistake(
        lambda: unchecked(OPTAX.lbfgs)(memory_size=2.5), TypeError, "memory_size of lbfgs must be an int"
    ),
    "True for a number": Mistake(lambda: OPTAX.sgd(0.1, True), TypeError, "momentum of sgd"),
    "False for a rate": Mistake(lambda: OPTAX.adamw(False), TypeError, "found False"),
    "a list for a rate that is injected": Mistake(
        lambda: OPTAX.inject_hyperparams(optax.adam)([0.1]), TypeError, "learning_rate of adam"
    ),
    "an optimizer for lbfgs": Mistake(lambda: unchecked(OPTAX.lbfgs)(ADAM), TypeError, "learning_rate of lbfgs"),
    "the arguments of apply_if_finite the other way round": Mistake(
        lambda: unchecked(OPTAX.apply_if_finite)(5, ADAM), TypeError, "max_consecutive_errors of apply_if_finite"
    ),
    "fewer errors than none": Mistake(lambda: OPTAX.apply_if_finite(ADAM, -1), ValueError, "max_consecutive_errors"),
    "a chain of nothing": Mistake(lambda: tko.chain(), ValueError, "chain"),
    "a list of transformations": Mistake(
        lambda: OPTAX.chain([tko.clip(1.0), ADAM]), TypeError, "optax.chain(*transformations)"
    ),
    "a function that makes transformations for one": Mistake(
        lambda: OPTAX.chain(tko.clip(1.0), optax.adam), TypeError, "args[1] of chain"
    ),
    # Names.
    "a misspelt name": Mistake(lambda: OPTAX.adamww, AttributeError, "'adamww'"),
    "a name of a submodule": Mistake(lambda: OPTAX.prodigy, AttributeError, "treekit.optax.contrib.prodigy"),
    "a name of treekit": Mistake(lambda: OPTAX.tree_at, AttributeError, "treekit.tree_at"),
    # Gradients.
    "gradients with a part less": Mistake(
        lambda: step(ADAM, {"out": None, "layer": {"b": ONES}}, LAYERS), ValueError, "at layer"
    ),
    "gradients of a masked optimizer": Mistake(
        lambda: step(ADAM, {"out": optax.MaskedNode(), "layer": None}, LAYERS), ValueError, "MaskedNode"
    ),
    "a tree for the gradient of an array": Mistake(lambda: step(ADAM, {**PARAMS, "b": {"x": ONES}}), TypeError, "at b"),
    "a gradient of integers": Mistake(lambda: step(ADAM, QUANTIZED, QUANTIZED), TypeError, "at q"),
    "a string for a gradient": Mistake(lambda: step(ADAM, {**PARAMS, "b": "ones"}), TypeError, "at b"),
    "a complex gradient": Mistake(lambda: step(ADAM, {**PARAMS, "b": COMPLEX}), TypeError, "at b"),
    "a gradient that could be broadcast": Mistake(
        lambda: step(ADAM, {"b": None, "w": jnp.ones((1, 3))}), ValueError, "at w"
    ),
    "gradients of each example": Mistake(lambda: step(ADAM, {**PARAMS, "w": jnp.ones((4, 2, 3))}), TypeError, "0.mu.w"),
    "gradients of integers, without the params": Mistake(
        lambda: TRACE.update(QUANTIZED, TRACE.init(QUANTIZED)), TypeError, "integers"
    ),
    # States.
    "a value and its gradients": Mistake(lambda: step(ADAM, (jnp.ones(()), PARAMS)), ValueError, "as value_and_grad"),
    "gradients of a batch": Mistake(
        lambda: step(ADAM, jax.tree.map(lambda x: jnp.ones((8, *x.shape)), PARAMS)), TypeError, "first axis a batch?"
    ),
    "a state of smaller params": Mistake(lambda: step(ADAM, PARAMS, state=ADAM.init(SMALLER)), StateError, "0.mu.w"),
    "a state of params with a part less": Mistake(
        lambda: step(ADAM, PARAMS, state=ADAM.init({"b": ONES})), StateError, "0.mu"
    ),
    "a state of Optax, with moments of integers": Mistake(
        lambda: step(ADAM, {**QUANTIZED, "q": None}, QUANTIZED, optax.adam(0.1).init(QUANTIZED)), StateError, "0.mu.q"
    ),
    "None for a state": Mistake(lambda: ADAM.update(PARAMS, None, PARAMS), StateError, "(root)"),
    "a state of two members, outside of vmap": Mistake(
        lambda: step(ADAM, ONES, ONES, members(ADAM.init(ONES))), StateError, "0.count"
    ),
    "a missing gradient, without the params": Mistake(
        lambda: ADAM.update({**PARAMS, "b": None}, STATE), StateError, "update(updates, state, params)"
    ),
    "a number that jit makes an array": Mistake(
        lambda: jax.jit(SUMS.update)({"w": ONES, "drop": None}, SUMS.init(NUMBERS), NUMBERS), StateError, "jax.jit"
    ),
    # What a transformation returns.
    "an update that is smaller": Mistake(lambda: step(returning(SMALLER, (), ()), PARAMS), ValueError, "at w"),
    "updates of other names": Mistake(
        lambda: returning({"w": 2 * PARAMS["w"], "bias": ONES}, (), ()).update(PARAMS, ()), TypeError, "bias"
    ),
    "updates that are deeper": Mistake(
        lambda: step(returning({**PARAMS, "b": {"x": ONES}}, (), ()), PARAMS), TypeError, "b  "
    ),
    "a new state of another structure": Mistake(
        lambda: step(returning(PARAMS, {"a": (ONES,), "b": ONES}, {"a": [ONES], "b": 2 * ONES}), PARAMS),
        TypeError,
        "a  type",
    ),
    "a new state that is smaller": Mistake(
        lambda: step(returning(PARAMS, {"a": jnp.ones(1)}, {"a": ONES}), PARAMS), TypeError, "f32[2] | f32[1]"
    ),
    "a new state that is complex": Mistake(
        lambda: step(returning(PARAMS, {"a": COMPLEX}, {"a": ONES}), PARAMS), TypeError, "at a"
    ),
    # apply_updates and apply_gradients.
    "the arguments of apply_updates the other way round": Mistake(
        lambda: tko.apply_updates({"w": None, "f": None}, {"w": ONES, "f": jnp.tanh}), TypeError, "(params, updates)"
    ),
    "an update of a key": Mistake(
        lambda: tko.apply_updates({"k": jax.random.key(0)}, {"k": jnp.ones(())}), TypeError, "at k"
    ),
    "None for the params": Mistake(
        lambda: training.apply_gradients(ADAM, PARAMS, STATE, None), TypeError, "(params, updates)"
    ),
    "the state before the gradients": Mistake(
        lambda: UNCHECKED.apply_gradients(ADAM, STATE, PARAMS, PARAMS), ValueError, "tuple"
    ),
    "a key that nothing takes": Mistake(
        lambda: training.apply_gradients(SUMS, PARAMS, SUMS.init(PARAMS), PARAMS, rng=jax.random.key(0)),
        TypeError,
        "'rng'",
    ),
    "nothing to train": Mistake(
        lambda: training.apply_gradients(ADAM, None, STATE, nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))[0]),
        ValueError,
        "GraphDef",
    ),
    "no gradient at all": Mistake(lambda: training.apply_gradients(ADAM, None, STATE, PARAMS), ValueError, "grads"),
}
