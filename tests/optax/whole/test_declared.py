"""What a class declares not to be trained has no state and no update, in every optimizer of treekit.optax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import treekit as tk
from treekit import optax as tko


@tk.node
class Normed:
    weight: jax.Array
    mean: jax.Array = tk.field(trainable=False)


class Module(eqx.Module):
    weight: jax.Array
    mean: jax.Array = eqx.field(metadata={"trainable": False})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: jax.Array
    mean: jax.Array = dataclasses.field(metadata={"trainable": False})


CLASSES: dict[str, Any] = {"node": Normed, "equinox": Module, "register_dataclass": Registered}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: tko.adamw(0.1, weight_decay=0.5),
    "optax": lambda: tko.chain(optax.adamw(0.1, weight_decay=0.5)),
    "filtered": lambda: tko.filtered(tko.adamw(0.1)),
    "masked": lambda: tko.masked(tko.adamw(0.1), True),
    "partition": lambda: tko.partition({"a": tko.adamw(0.1)}, "a"),
    "MultiSteps": lambda: tko.MultiSteps(tko.adamw(0.1), 1),
    "average": lambda: tko.chain(tko.adamw(0.1), tko.params_ema(0.5)),
    "mask by path": lambda: tko.adamw(0.1, mask=tk.path_mask("**.weight")),
    "filtered by trainable": lambda: tko.filtered(tko.adamw(0.1, weight_decay=0.5), tk.trainable),
    "decay of trainable": lambda: tko.chain(tko.sgd(0.1), tko.adamw(1.0, weight_decay=1.0, mask=tk.trainable)),
    "state_dtype": lambda: tko.dtype_preserving(tko.adamw(0.1), state_dtype={"mu": jnp.bfloat16}),
}


def model(kind: str) -> Any:
    return {"layer": CLASSES[kind](jnp.ones((2, 3)), jnp.ones(3)), "head": jnp.ones(3)}


def has_state(tx: Any, params: Any) -> bool:
    return any(name.endswith("mean") for name in tk.to_state_dict(tx.init(params)))


@pytest.mark.table
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_has_no_state_and_no_update(name: str, kind: str) -> None:
    tx, params = OPTIMIZERS[name](), model(kind)
    assert not has_state(tx, params)

    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        assert updates["layer"].mean is None
        return tko.apply_updates(params, updates), state

    for function in (jax.jit(step), step, lambda *args: tko.apply_gradients(tx, *args)):
        state = tx.init(params)
        for _ in range(2):
            after, state = function(params, state, params)
            assert (after["layer"].mean == 1).all() and (after["layer"].weight != 1).all()


def test_it_does_not_count_in_global_norms_and_the_average_has_its_current_value() -> None:
    params = {"layer": Normed(jnp.ones(4), jnp.full(3, 100.0))}
    tx = tko.chain(tko.clip_by_global_norm(1.0), tko.sgd(1.0), tko.params_ema(0.5))
    updates, state = tx.update(params, tx.init(params), params)
    assert jnp.allclose(updates["layer"].weight, -0.5)
    now = {"layer": Normed(jnp.zeros(4), jnp.full(3, 7.0))}
    assert (tko.get_ema(state, now)["layer"].mean == 7).all()
    assert (tko.incremental_update(now, params, 0.5)["layer"].mean == 7).all()
    assert (tko.incremental_update(now, params, 0.5)["layer"].weight == 0.5).all()


def test_the_summary_says_so() -> None:
    notes = {row.path: row.note for row in tko.summary(tko.adamw(0.1), model("node")).rows}
    assert notes == {"layer.weight": "", "layer.mean": "trainable=False", "head": ""}


TREES: dict[str, Callable[[Any], Any]] = {
    "filtered": lambda mask: tko.filtered(tko.adam(0.1), mask),
    "masked": lambda mask: tko.masked(tko.adam(0.1), mask),
    "adamw": lambda mask: tko.adamw(0.1, mask=mask),
    "labels": lambda mask: tko.partition({True: tko.adam(0.1), False: optax.set_to_zero()}, mask),
    "freeze": lambda mask: tko.freeze(mask),
    "selective_transform": lambda mask: tko.selective_transform(tko.adam(0.1), freeze_mask=mask),
}


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("name", TREES)
def test_no_mask_trains_it(name: str, chosen: bool) -> None:
    params = model("node")
    mask: Any = jax.tree.map(lambda _: True, params)
    for given in (True, {**mask, "layer": tk.replace(mask["layer"], mean=chosen)}, {"layer": True, "head": False}):
        assert not has_state(TREES[name](given), params)
