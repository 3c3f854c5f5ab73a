"""The table of known states is complete: each factory of Optax is asked which arrays of its state are what."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.optax import cases, factories
from treekit import optax as tko
from treekit.optax._kernel.state_map import Entry, map_state

PARAMS = {"b": jnp.array([[1.7, -0.9], [0.8, 0.3]]), "w": jnp.linspace(0.6, 2.3, 6).reshape(2, 3)}
OTHERS = jax.tree.map(lambda x: x + 0.125, PARAMS)
# They only grow: docs/guides/precision.md says so, and leaves their dtype to the user.
SUMS = {
    *(("COCOBState", name) for name in ("cumulative_gradients", "subgradients", "scale", "reward")),
    *(("MadgradState", name) for name in ("s", "grad_sum_sq")),
    ("ScaleByDistanceOverGradientsState", "grad_sum_of_squares"),
    ("ScaleByRssState", "sum_of_squares"),
    ("ScaleBySM3State", "mu"),
}
RENEWED = {("GaLoreState", "projector"), ("SophiaState", "nu")}  # from time to time
HAVE_AXES = {"flatten": "mu nu", "sm3": "mu", "scale_by_sm3": "mu"}  # of several params, or an axis of one


def place(entry: Entry) -> tuple[str, str]:
    return getattr(entry.owner, "__name__", ""), entry.field


def is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@functools.cache
def entries(name: str) -> tuple[Any, list[Entry], list[Any]]:
    tx = factories.call(tko, name, PARAMS)
    state = tx.init(PARAMS)
    return tx, map_state(state, PARAMS), jax.tree.leaves(state)


@pytest.mark.parametrize("name", factories.TRANSFORMATIONS)
def test_what_an_error_of_rounding_would_stay_in_is_known(name: str) -> None:
    """Copies of the params, and what a state adds to: in an average, an error is forgotten."""
    tx, known, before = entries(name)
    grads = jax.tree.map(lambda x: jnp.cos(x)[None] if name in factories.BY_EXAMPLE else jnp.cos(x), PARAMS)
    extra = factories.EXTRA.get(name, {"value": jnp.float32(1), "grad": grads, "value_fn": cases.loss})
    treedef: Any = jax.tree.structure(tx.init(PARAMS))

    def step(leaves: list[Any]) -> list[Any]:
        with jax.numpy_rank_promotion("allow"):
            return jax.tree.leaves(tx.update(grads, treedef.unflatten(leaves), OTHERS, **extra)[1])

    start, before = before, step(step(before))  # adopt has no momentum in its first step
    moved = [jnp.where(jnp.isfinite(x), x + 1, x) if is_float(x) and x.ndim else x for x in before]
    first, second = step(before), step(moved)
    for i, entry in enumerate(known):
        if entry.param is None or not is_float(before[i]) or not before[i].ndim:
            continue
        if entry.in_rounds and not entry.known.takes_rounds:  # nothing happened to it
            continue
        copies = [jax.tree.leaves(tree)[entry.param] for tree in (PARAMS, OTHERS)]
        is_copy = any(map(np.array_equal, (start[i], first[i]), copies))
        stays = np.allclose(second[i] - first[i], moved[i] - before[i], rtol=3e-5) and not is_all(moved[i] == before[i])
        if (is_copy or stays) and place(entry) not in SUMS | RENEWED:
            assert entry.field in entry.known.at_least_float32, place(entry)


def is_all(x: Any) -> bool:
    return bool(np.all(x))


@pytest.mark.parametrize("name", factories.TRANSFORMATIONS)
def test_an_array_with_axes_that_is_of_no_param_is_known(name: str) -> None:
    _, known, leaves = entries(name)
    for entry, x in zip(known, leaves, strict=True):
        if entry.param is None and is_float(x) and x.ndim and entry.field not in HAVE_AXES.get(name, ""):
            assert entry.of_no_param, place(entry)
