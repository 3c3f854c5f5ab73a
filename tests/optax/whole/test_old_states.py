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
def test_an_old_state_loads_by_graft_and_gives_the_updates_that_it_gave(name: str) -> None:
    optimizer, params, fresh = old_states.start(name)
    state, _ = tk.graft(fresh, saved(name, "state"))
    assert all(np.array_equal(x, saved(name, "state")[key]) for key, x in tk.to_state_dict(state).items())
    of_old, of_new = (old_states.some(old_states.update(name, optimizer, x, params)[0]) for x in (state, fresh))
    for leaf, expected in saved(name, "updates").items():
        np.testing.assert_allclose(of_old[f"updates.{leaf}"], expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(of_new[f"updates.{leaf}"], expected, rtol=1e-3), f"{leaf} does not depend on the state"
