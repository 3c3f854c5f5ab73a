"""monitor: measurements of the updates, stored in the state from `init` on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko

PARAMS: Any = {"w": jnp.ones(2), "name": "scale"}
MEASURES: dict[str, Callable[[Any], Any]] = {
    "of a leaf": lambda u: jnp.abs(u["w"]).mean(),
    "of the whole": optax.tree.norm,
    "a tree": lambda u: jax.tree.map(jnp.mean, u),
}


@pytest.mark.parametrize("name", MEASURES)
def test_tree_map_params_maps_the_other_states(name: str) -> None:
    """It calls `init` with a placeholder for any params, which cannot be measured."""
    tx = tko.chain(tko.monitor({name: MEASURES[name]}), tko.adam(0.1))
    state = tx.init(PARAMS)
    for _ in range(2):
        marked: Any = tko.tree_map_params(tx, lambda _: "param", state, transform_non_params=lambda _: "other")
        assert marked[1][0].mu["w"] == "param"
        others = jax.tree.map(lambda _: "other", state[0].measurements)
        assert marked[0].measurements == others
        state = tx.update({"w": jnp.ones(2), "name": None}, state, PARAMS)[1]


def test_what_is_no_measure_is_an_error_that_names_it() -> None:
    wrong: Any = {"norm": 3}
    with pytest.raises(TypeError, match=r"the measure 'norm' must be a .*found 3"):
        tko.monitor(wrong)
