"""What a user reads after a mistake: what is wrong, where, what was found, and what to do."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from tests.optax import cases
from tests.releases import needs
from treekit import optax as tko

MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
PARAMS = {"layers": [{"w": jnp.ones((2, 2))}]}
SHAPES = jax.eval_shape(lambda: PARAMS)
PAIR = optax.LookaheadParams.init_synced(PARAMS)
LOOKAHEAD = optax.lookahead(optax.sgd(0.1), 5, 0.5)
RATE: Any = tko.inject_hyperparams(tko.sgd)
NO_LABELS = jax.tree.map(lambda _: None, eqx.filter(MODEL, eqx.is_array))


LINEAR = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
NEED_UPDATES: dict[str, Callable[[Any], Any]] = {
    "schedule_free": lambda tx: tko.contrib.schedule_free(tx, 0.1),
    "sam": lambda tx: tko.contrib.sam(tx, tko.sgd(0.1)),
    "mechanize": lambda tx: tko.contrib.mechanize(tx),
}


def hyperparameter_of_none(tx: Any) -> Any:
    state = tx.init(PARAMS)
    state.hyperparams["b1"] = None
    return tx.update(PARAMS, state, PARAMS)


def call(module: Any, name: str, *args: object, **kwargs: object) -> Any:
    return getattr(module, name)(*args, **kwargs)


def step(tx: Any, params: Any = PARAMS) -> Any:
    return tx.update(PARAMS, tx.init(PARAMS), params)


# Unwrapped, since tests check the types of arguments, which would be the first to raise.
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "labels that are all None": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, NO_LABELS).init(MODEL),
        r"^param_labels, of type MLP, has no leaf.*\nMake param_labels with jax\.tree\.map",
    ),
    "a function that labels with None": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, lambda m: NO_LABELS).init(MODEL),
        r"param_labels\(params\)\.layers\.0\.weight it has None",
    ),
    "a list of transformations": (
        partial(call, tko, "chain", [tko.clip(1.0), tko.sgd(0.1)]),
        r"for args\[0\] of chain, found .* To chain several, write optax\.chain\(\*transformations\)",
    ),
    "no transformations": (lambda: tko.chain(), "^chain takes at least one transformation"),
    "a list of groups": (
        partial(inspect.unwrap(tko.partition), [tko.sgd(0.1)], "a"),
        "^transforms must map labels to transformations",
    ),
    "partition of optax for that of treekit": (
        partial(inspect.unwrap(tko.partition), MODEL, eqx.is_array),
        r"^transforms must map .*found MLP.* use treekit\.partition",
    ),
    "a mask for the second argument": (
        partial(call, tko, "adamw", 1e-3, lambda params: params),
        "^b1 of adamw must be a number, found <function",
    ),
    "a rate that is a string": (partial(call, tko, "adam", "1e-3"), "^learning_rate of adam must be .*, found '1e-3'"),
    "an injected rate that is a string": (partial(RATE, "1e-3"), "^learning_rate of sgd must be .*, found '1e-3'"),
    "an optimizer for its factory": (
        partial(inspect.unwrap(tko.inject_hyperparams), tko.adam(0.1)),
        r"inject_hyperparams\(optax\.adam\)\(1e-3\), found GradientTransformation",
    ),
    "the arguments beside the factory": (
        partial(inspect.unwrap(tko.inject_hyperparams), tko.adam, 1e-3),
        r"^`static_args` must be the name, .* found 0\.001",
    ),
    "MultiSteps in the other order": (
        partial(inspect.unwrap(tko.MultiSteps.__init__), object.__new__(tko.MultiSteps), 4, tko.sgd(0.1)),
        r"^every_k_schedule must be .* takes \(optimizer, k\)",
    ),
    "a function that returns whether to skip, alone": (
        lambda: call(tko, "MultiSteps", tko.sgd(0.1), 2, should_skip_update_fn=lambda *_: jnp.array(False)).init(
            PARAMS
        ),
        "^should_skip_update_fn must return two values",
    ),
    "a state for the params": (
        lambda: tko.adam(0.1).init(tko.adam(0.1).init(PARAMS)),
        "^init takes the params.* received the state of an optimizer",
    ),
    "a module of NNX in update": (
        lambda: tko.adam(0.1).update(LINEAR, tko.adam(0.1).init(nnx.state(LINEAR, nnx.Param)), LINEAR),
        r"a module of Flax NNX: pass nnx\.state\(model, nnx\.Param\)",
    ),
    "a hyperparameter that is None": (
        lambda: hyperparameter_of_none(tko.inject_hyperparams(tko.adam)(0.1)),
        r"does not fit.*\nhyperparams\.b1 +array against None",
    ),
    **{
        f"filtered inside of {name}": (
            partial(step, make(tko.filtered(tko.adam(0.1), {"layers": [{"w": False}]}))),
            r"^the state has None for layers\.0\.w: .* put `filtered` outermost",
        )
        for name, make in NEED_UPDATES.items()
    },
    "a misspelt label": (
        lambda: tko.partition({"bias": tko.sgd(0.1)}, "bais").init(PARAMS),
        r"^Some parameters have no .*: the label of all is 'bais'\. Did you mean 'bias'\?\n",
    ),
    "an optimizer for its state": (
        partial(call, tko, "set_hyperparams", tko.inject_hyperparams(tko.sgd)(0.1), learning_rate=0.1),
        r"^expected the state of an optimizer, found an optimizer: pass optimizer\.init\(params\)",
    ),
    "one of two rates that follows a schedule": (
        lambda: tko.set_hyperparams(tko.chain(RATE(0.1), RATE(lambda count: 0.1)).init(PARAMS), learning_rate=0.2),
        r"^1\.learning_rate follows a schedule, .* To set only 0\.learning_rate, use that as the key: ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_of_a_mistake(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=rf"(?s){message}"):
        make()


OPTIMIZERS: dict[str, Any] = {
    "adam": tko.adam(0.1),
    "MultiSteps": tko.MultiSteps(tko.adam(0.1), 2).gradient_transformation(),
    "chain": tko.chain(tko.clip(1.0), tko.adam(0.1)),
    "inject": tko.inject_hyperparams(tko.adam)(0.1),
    "apply_if_finite": tko.apply_if_finite(tko.adam(0.1), 2),
}


@pytest.mark.parametrize("now", OPTIMIZERS)
def test_the_state_of_another_optimizer_leads_to_graft(now: str) -> None:
    """As after adding a wrapper to a program that resumes."""
    for before in OPTIMIZERS.keys() - {now}:
        with pytest.raises((ValueError, TypeError), match=r"(?s)does not fit this optimizer.*treekit\.graft\(.*\|"):
            OPTIMIZERS[now].update(PARAMS, OPTIMIZERS[before].init(PARAMS), PARAMS)


@needs("optax.contrib.galore")
def test_what_cannot_take_none_is_named_and_a_mask_helps() -> None:
    params = {"w": jnp.eye(4), "f": jnp.tanh}
    galore = tko.contrib.galore(1e-2, rank=2)
    with pytest.raises(AttributeError) as caught:
        galore.init(params)
    assert "optax.contrib._galore received None" in caught.value.__notes__[0]
    masked = tko.masked(galore, {"w": True, "f": False})
    updates, _ = masked.update({"w": jnp.eye(4), "f": None}, masked.init(params), params)
    alone, _ = galore.update({"w": jnp.eye(4)}, galore.init({"w": jnp.eye(4)}), {"w": jnp.eye(4)})
    assert updates["f"] is None and cases.same_bits(updates["w"], alone["w"])


def test_these_are_no_mistakes() -> None:
    assert jax.eval_shape(tko.contrib.prodigy().init, SHAPES)
    variable: Any = nnx.Param(jnp.asarray(0.5))
    assert tko.scale(variable).init(PARAMS) == optax.EmptyState()


WIDER = eqx.nn.MLP(2, 2, 8, 1, key=jax.random.key(0))
OF_WIDER = jax.tree.map(lambda _: True, WIDER)
ADAM: Any = tko.adam(0.1)
VALUES = {"value": 1.0, "value_fn": jnp.sum}
OTHER_MODEL: dict[str, Callable[[], Any]] = {
    "gradients": lambda: ADAM.update(eqx.filter(WIDER, eqx.is_array), ADAM.init(MODEL), MODEL),
    "updates": lambda: tko.apply_updates(MODEL, OF_WIDER),
    "a mask": lambda: tko.masked(ADAM, OF_WIDER).init(MODEL),
    "labels": lambda: tko.partition({True: ADAM}, OF_WIDER).init(MODEL),
    "params of get_ema": lambda: tko.get_ema(tko.params_ema(0.9).init(WIDER), MODEL),
    "the argument grad": lambda: tko.lbfgs().update(MODEL, tko.lbfgs().init(MODEL), MODEL, grad=WIDER, **VALUES),
}


@pytest.mark.parametrize("name", OTHER_MODEL)
def test_what_differs_from_the_model_is_said(name: str) -> None:
    with pytest.raises(ValueError, match=r"\bwidth_size\b.* [48], and .* [48]"):
        OTHER_MODEL[name]()


def test_a_misspelt_name_is_reported_for_treekit() -> None:
    with pytest.raises(AttributeError, match=r"^module 'treekit\.optax' has no attribute 'adamww'$") as found:
        call(tko, "adamww")
    assert found.value.name == "adamww" and "adamw" in dir(found.value.obj)  # from which Python finds the nearest
