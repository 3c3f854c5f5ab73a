"""What a user reads after a mistake: what is wrong, where, what was found, and what to do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from treekit import optax as tko

MODEL = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
PARAMS = {"layers": [{"w": jnp.ones((2, 2))}]}
SHAPES = jax.eval_shape(lambda: PARAMS)
PAIR = optax.LookaheadParams.init_synced(PARAMS)
LOOKAHEAD = optax.lookahead(optax.sgd(0.1), 5, 0.5)
NO_LABELS = jax.tree.map(lambda _: None, eqx.filter(MODEL, eqx.is_array))


def call(module: Any, name: str, *args: object, **kwargs: object) -> Any:
    return getattr(module, name)(*args, **kwargs)


def init(name: str) -> Any:
    return call(tko.contrib, name).init(SHAPES)


def update_without_params(tx: Any) -> Any:
    return tx.update(PARAMS, tx.init(PARAMS))


LOOKAHEAD_ERROR = r"apply_gradients does not take a step of optax\.lookahead.*optimizer\.update with the pair"
NEEDS_PARAMS = r"requires the current value of parameters, but you are not passing `params`"
NEEDS_VALUES = (
    r"a ShapeDtypeStruct at layers\.0\.w, and this init computes.*use jax\.eval_shape\(optimizer\.init, params\)"
)
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "labels that are all None": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, NO_LABELS).init(MODEL),
        r"^param_labels is a MLP without a leaf.*\nMake param_labels with jax\.tree\.map",
    ),
    "None for freeze_mask": (
        partial(call, tko.transforms, "selective_transform", tko.sgd(0.1), freeze_mask=None),
        r"^freeze_mask is None, which would freeze nothing",
    ),
    "a function that labels with None": (
        lambda: tko.partition({"a": tko.sgd(0.1)}, lambda m: NO_LABELS).init(MODEL),
        r"at param_labels\(params\)\.layers\.0\.weight it has NoneType",
    ),
    **{
        f"a model for {name} of {factory}": (
            partial(call, tko, factory, MODEL),
            rf"^{name} of {factory} must be a number, found a MLP\. Params and gradients are arguments",
        )
        for factory, name in {
            "clip": "max_delta",
            "clip_by_global_norm": "max_norm",
            "ema": "decay",
            "scale": "step_size",
            "sm3": "learning_rate",
        }.items()
    },
    "gradients for max_norm": (partial(call, tko, "clip_by_global_norm", PARAMS), r"max_norm .* found a dict\. "),
    **{
        f"{name} for shapes": (partial(init, name), NEEDS_VALUES)
        for name in ("dadapt_adamw", "dog", "dowg", "momo", "momo_adam", "prodigy")
    },
    "schedule_free for shapes": (lambda: tko.contrib.schedule_free(tko.sgd(0.1), 0.1).init(SHAPES), NEEDS_VALUES),
    "lookahead": (lambda: tko.apply_gradients(LOOKAHEAD, PARAMS, LOOKAHEAD.init(PAIR), PAIR), LOOKAHEAD_ERROR),
    "lookahead, one of its params": (
        lambda: tko.apply_gradients(LOOKAHEAD, PARAMS, LOOKAHEAD.init(PAIR), PARAMS),
        LOOKAHEAD_ERROR,
    ),
    **{
        f"no params, {name}": (partial(update_without_params, tx), NEEDS_PARAMS)
        for name, tx in {
            "adamw": tko.adamw(0.1),
            "chain": tko.chain(tko.clip(1.0), tko.lamb(0.1)),
            "MultiSteps": tko.MultiSteps(tko.lion(0.1), 1),
            "partition": tko.partition({"a": tko.adamw(0.1)}, "a"),
            "apply_if_finite": tko.apply_if_finite(tko.lars(0.1), 2),
        }.items()
    },
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_of_a_mistake(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=rf"(?s){message}"):
        make()


def test_shapes_are_enough_for_eval_shape() -> None:
    assert jax.eval_shape(tko.contrib.prodigy().init, SHAPES)


def test_a_variable_of_flax_is_a_number() -> None:
    factor: Any = nnx.Param(jnp.asarray(0.5))
    assert tko.scale(factor).init(PARAMS) == optax.EmptyState()
