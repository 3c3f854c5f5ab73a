"""tree_map_params finds the params in every state, and skips what is left out."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from tests.releases import keys
from treekit import optax as tko
from treekit import training


def test_is_leaf_is_asked_as_in_optax_and_an_init_alone_will_do() -> None:
    def is_masked(x: Any) -> bool:
        return isinstance(x, optax.MaskedNode)

    mapped = []
    for o in (tko, optax):
        tx = o.masked(optax.adam(0.1), {"w": True, "b": False})
        state = tx.init(cases.arrays())
        mapped.append(o.tree_map_params(tx.init, is_masked, state, is_leaf=is_masked))
    assert mapped[0] == mapped[1] and mapped[0].inner_state[0].mu == {"w": False, "b": True}


ONLY_W = {"w": True, "b": False}
MAPPED: dict[str, Callable[[], Any]] = {
    "selective_transform": lambda: tko.transforms.selective_transform(
        tko.adam(0.1), freeze_mask={"w": False, "b": True}
    ),
    "masked": lambda: tko.adamw(0.1, mask=ONLY_W),
    "partition": lambda: tko.partition({True: tko.adam(0.1), False: tko.sgd(0.1)}, ONLY_W),
    "inject": lambda: tko.inject_hyperparams(tko.adamw)(optax.linear_schedule(1.0, 0.0, 5), mask=ONLY_W),
    "16 bits": lambda: training.store_state(tko.adam(0.1), {"mu": jnp.bfloat16}, rounding="stochastic"),
    "rates": lambda: tko.chain(tko.adam(0.1), training.scale_by_tree({"w": 1.0, "b": 0.5}), training.params_ema(0.9)),
    "monitor": lambda: tko.chain(tko.adam(0.1), tko.monitor({"norm": optax.tree.norm})),
}


@pytest.mark.parametrize("o", [tko, optax], ids=["treekit", "Optax"])
@pytest.mark.parametrize("name", keys(MAPPED, {"monitor": "optax.monitor"}))
def test_the_params_in_a_state_are_found_in_every_wrapper(name: str, o: Any) -> None:
    """By Optax's function too, which knows nothing of leaves that are left out."""
    tx, params = MAPPED[name](), cases.arrays()
    state: Any = tx.init(params)
    mapped: Any = o.tree_map_params(tx, lambda x: x + 1, state)
    assert cases.structure(mapped) == cases.structure(state)
    mu = optax.tree.get(mapped, "mu")
    assert (mu["w"] == 1).all()
