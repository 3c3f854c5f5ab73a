"""States that 1.0 made load, under the names that they had, and go on where they were."""

from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import treekit as tk
from tests.optax import old_states
from tests.releases import keys

NAMES = keys(old_states.OPTIMIZERS, {"averaged": "optax.monitor"})
ARRAYS: dict[str, Any] = safetensors.numpy.load_file(old_states.FILE)


def saved(name: str, part: str) -> dict[str, Any]:
    start = f"{name}/{part}."
    return {key.removeprefix(start): x for key, x in ARRAYS.items() if key.startswith(start)}


def test_the_file_has_these_optimizers() -> None:
    assert {key.partition("/")[0] for key in ARRAYS} == old_states.OPTIMIZERS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_state_has_the_names_shapes_and_dtypes_of_a_new_one(name: str) -> None:
    _, _, state = old_states.start(name)
    new = tk.to_state_dict(state)
    old = saved(name, "state")
    assert {key: (x.shape, x.dtype) for key, x in old.items()} == {key: (x.shape, x.dtype) for key, x in new.items()}


@pytest.mark.parametrize("name", NAMES)
def test_an_old_state_loads_by_graft_and_gives_the_updates_that_it_gave(name: str) -> None:
    optimizer, params, fresh = old_states.start(name)
    state, _ = tk.graft(fresh, saved(name, "state"))
    assert all(np.array_equal(x, saved(name, "state")[key]) for key, x in tk.to_state_dict(state).items())
    updates, _ = old_states.update(name, optimizer, state, params)
    without, _ = old_states.update(name, optimizer, fresh, params)
    expected = saved(name, "updates")
    found = old_states.some(updates)
    for key, x in old_states.some(without).items():
        of_leaf = key.removeprefix("updates.")
        np.testing.assert_allclose(found[key], expected[of_leaf], rtol=1e-5, atol=1e-6)
        assert not np.allclose(x, expected[of_leaf], rtol=1e-3), f"{key} does not depend on the state"
