"""What a class declares not to be trained has no state and no update, in every optimizer of treekit.optax."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import treekit as tk
from tests.releases import keys, needs
from treekit import optax as tko
from treekit import training


@tk.node
class Normed:
    weight: jax.Array
    mean: jax.Array = tk.field(trainable=False)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    weight: jax.Array
    mean: jax.Array = dataclasses.field(metadata={"trainable": False})


def model() -> Any:
    layers = [layer(jnp.ones((2, 3)), jnp.ones(3)) for layer in (Normed, Registered)]
    return {"layers": layers, "head": jnp.ones(3)}


ALL = jax.tree.map(lambda _: True, model())
NONE = jax.tree.map(lambda _: False, model())
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw": lambda: tko.adamw(0.1, weight_decay=0.5),
    "optax": lambda: tko.chain(optax.adamw(0.1, weight_decay=0.5)),
    "partition by trainable": lambda: tko.partition(
        {True: tko.adamw(0.1, weight_decay=0.5), False: tko.set_to_zero()}, tk.trainable
    ),
    "masked": lambda: tko.masked(tko.adamw(0.1), True),
    "masked by a tree": lambda: tko.masked(tko.adamw(0.1), ALL),
    "masked by a part of one": lambda: tko.masked(tko.adamw(0.1), {"layers": True, "head": False}),
    "mask of decay": lambda: tko.adamw(0.1, mask=ALL),
    "mask by path": lambda: tko.adamw(0.1, mask=tk.path_mask("**.weight")),
    "decay of trainable": lambda: tko.chain(tko.sgd(0.1), tko.adamw(1.0, weight_decay=1.0, mask=tk.trainable)),
    "partition": lambda: tko.partition({"a": tko.adamw(0.1)}, "a"),
    "partition by a tree": lambda: tko.partition({True: tko.adamw(0.1)}, ALL),
    "freeze": lambda: tko.chain(tko.adamw(0.1), tko.transforms.freeze(NONE)),
    "selective_transform": lambda: tko.transforms.selective_transform(tko.adamw(0.1), freeze_mask=NONE),
    "MultiSteps": lambda: tko.MultiSteps(tko.adamw(0.1), 1),
    "average": lambda: tko.chain(tko.adamw(0.1), training.params_ema(0.5)),
    "state_dtype": lambda: training.store_state(tko.adamw(0.1), {"mu": jnp.bfloat16}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_has_no_state_and_no_update(name: str) -> None:
    """Not even where a mask says otherwise. tests/select/test_trainable.py has the ways to declare it."""
    tx, params = OPTIMIZERS[name](), model()
    assert not any(name.endswith("mean") for name in tk.to_state_dict(tx.init(params)))

    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = tx.update(grads, state, params)
        assert all(layer.mean is None for layer in updates["layers"])
        return tko.apply_updates(params, updates), state

    for function in (jax.jit(step), step):
        state = tx.init(params)
        for _ in range(2):
            after, state = function(params, state, params)
            assert all((layer.mean == 1).all() and (layer.weight != 1).all() for layer in after["layers"])


def test_it_does_not_count_in_global_norms_and_the_average_has_its_current_value() -> None:
    params = {"layer": Normed(jnp.ones(4), jnp.full(3, 100.0))}
    tx = tko.chain(tko.clip_by_global_norm(1.0), tko.sgd(1.0), training.params_ema(0.5))
    updates, state = tx.update(params, tx.init(params), params)
    assert jnp.allclose(updates["layer"].weight, -0.5)
    now = {"layer": Normed(jnp.zeros(4), jnp.full(3, 7.0))}
    assert (training.get_params_ema(state, now)["layer"].mean == 7).all()
    assert (tko.incremental_update(now, params, 0.5)["layer"].mean == 7).all()
    assert (tko.incremental_update(now, params, 0.5)["layer"].weight == 0.5).all()


def reduction(name: str) -> Callable[[Any, Any], Any]:
    """A function of `optax.tree`, of one of the two libraries."""
    return lambda o, x: getattr(o.tree, name)(x)


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "global_norm": lambda o, x: o.global_norm(x),
    "l1": lambda o, x: o.tree_utils.tree_norm(x, 1),
    **{name: reduction(name) for name in ("max", "min", "norm", "size", "sum")},
    "vdot": lambda o, x: o.tree.vdot(x, x),
    "per_example_global_norm_clip": lambda o, x: o.per_example_global_norm_clip(x, 1.0)[0]["layer"],
    "per_example_layer_norm_clip": lambda o, x: o.per_example_layer_norm_clip(x, 1.0)[0]["layer"],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", keys(REDUCTIONS, {name: f"optax.tree.{name}" for name in ("min", "size")}))
def test_it_does_not_count_in_what_reduces_a_tree(name: str) -> None:
    whole = {"layer": Normed(jnp.full((1, 4), 3.0), jnp.full((1, 2), 100.0))}
    ours, theirs = REDUCTIONS[name](tko, whole), REDUCTIONS[name](optax, {"layer": whole["layer"].weight})
    assert jnp.allclose(getattr(ours, "weight", ours), theirs)
    assert (tko.tree.scale(2.0, whole)["layer"].mean == 200).all()
    assert tko.tree.cast(whole, jnp.bfloat16)["layer"].mean.dtype == jnp.bfloat16


def test_a_nan_in_its_gradient_skips_no_step() -> None:
    params = {"layer": Normed(jnp.ones(4), jnp.ones(3))}
    grads = {"layer": Normed(jnp.ones(4), jnp.full(3, jnp.nan))}
    optimizers: tuple[Any, ...] = (
        tko.apply_if_finite(tko.sgd(1.0), 3),
        tko.MultiSteps(tko.sgd(1.0), 1, should_skip_update_fn=optax.skip_not_finite),
        tko.chain(tko.clip_by_global_norm(2.0), tko.sgd(1.0)),
    )
    for tx in optimizers:
        updates, _ = tx.update(grads, tx.init(params), params)
        assert (updates["layer"].weight == -1).all()


@needs("optax.monitor")
def test_monitor_does_not_measure_its_gradient() -> None:
    params = {"layer": Normed(jnp.ones(4), jnp.ones(3))}
    grads = {"layer": Normed(jnp.ones(4), jnp.full(3, jnp.nan))}
    tx = tko.monitor({"norm": tko.tree.norm})
    assert optax.tree.get(tx.update(grads, tx.init(params), params)[1], "norm") == 2


def test_the_summary_says_so() -> None:
    notes = {row.path: row.note for row in training.summary(tko.adamw(0.1), {"layer": model()["layers"][0]}).rows}
    assert notes == {"layer.weight": "", "layer.mean": "trainable=False"}
