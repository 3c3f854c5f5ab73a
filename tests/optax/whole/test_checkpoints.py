"""States of every wrapper around every optimizer, and those that 1.0 made: saved, restored and mapped over."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

import treekit as tk
from tests.optax import cases, old_states
from tests.releases import keys
from tests.saved import through_orbax
from tests.trees import identical
from treekit import optax as tko
from treekit import training
from treekit.testing import assert_trees_same


def labels(params: Any) -> Any:
    return jax.tree.map(lambda x: "a" if np.ndim(x) > 1 else "b", params)


def multi_steps(tx: Any) -> Any:
    return tko.MultiSteps(tx, 3).gradient_transformation()


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "multi_steps_of_masked": lambda tx: multi_steps(tko.masked(tx, cases.mask_of)),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 2),
    "dtype_preserving": lambda tx: training.store_state(tx, jnp.float32),
    "stochastic": lambda tx: training.store_state(tx, rounding="stochastic"),
    "partition": lambda tx: tko.partition({"a": tx, "b": optax.sgd(0.1, momentum=0.9)}, labels),
    "inject": lambda tx: tko.inject_hyperparams(lambda scale: optax.chain(tx, optax.scale(scale)))(cases.schedule),
    "multi_steps": multi_steps,
    "named_chain": lambda tx: tko.named_chain(("clip", tko.clip(1.0)), ("inner", tko.masked(tx, cases.mask_of))),
    "apply_if_finite_of_multi_steps": lambda tx: tko.apply_if_finite(multi_steps(tx), 2),
}


def through_pickle(tree: Any, path: Path, _: Any) -> Any:
    path.write_bytes(pickle.dumps(tree))
    return pickle.loads(path.read_bytes())


@pytest.mark.table
@pytest.mark.parametrize(("wrap", "name", "kind"), cases.cells(WRAPPERS, 3, whole=(), every=8))
def test_a_run_resumed_after_any_step_is_bit_equal(wrap: Any, name: str, kind: str, tmp_path: Path) -> None:
    """Also in the middle of an accumulation, of which a round is three steps."""
    step, reached = cases.train(wrap(cases.OPTIMIZERS[name](optax)), kind, 4)
    states = [state for _, state in reached[:-1]]
    fresh = [states[0]] * len(states)  # what is known before a checkpoint is read
    for through in (through_orbax, through_pickle):
        restored = through(states, tmp_path / through.__name__, fresh)
        assert_trees_same(restored, states)
        for (params, _), state, after in zip(reached[:-1], restored, reached[1:], strict=True):
            assert_trees_same(cases.arrays_of(step(params, state)), cases.arrays_of(after))


@pytest.mark.parametrize("kind", ["none", "nnx"])
def test_states_are_built_as_those_of_optax_so_its_checkpoints_load(kind: str) -> None:
    def make(o: Any) -> Any:
        adam = o.adam(0.1)
        wrapped = o.inject_hyperparams(o.adamw)(0.1), o.MultiSteps(adam, 2), o.apply_if_finite(adam, 2)
        return [tx.init(cases.make(kind)) for tx in (*wrapped, o.lbfgs(), o.named_chain(("adam", adam)))]

    cases.assert_close(make(tko), make(optax))


@pytest.mark.parametrize("kind", ["eqx_raw", "int_key"])
@pytest.mark.parametrize("wrapper", [*WRAPPERS, "schedule_free"])
def test_params_in_the_state_are_mapped_beside_a_second_tree(wrapper: str, kind: str) -> None:
    """What belongs to a param meets what the second tree has for that param, here its shape; the rest, a function."""
    params = cases.make(kind)
    tx = WRAPPERS[wrapper](optax.adam(0.1)) if wrapper in WRAPPERS else tko.contrib.schedule_free_adamw(0.1)
    state = tx.init(params)

    def meet(x: Any, shape: Any) -> bool:
        return bool(x.shape == shape)

    shapes = jax.tree.map(np.shape, params)
    met = jax.tree.leaves(tko.tree_map_params(tx, meet, state, shapes, transform_non_params=lambda _: "other"))
    assert len(met) == len(jax.tree.leaves(state))
    assert met.count(True) > 1 and met.count(True) + met.count("other") == len(met)
    assert identical(tko.tree_map_params(tx, lambda x: x, state), state)


# ------------------------------------------------------------------------------------------------------ states of 1.0


ARRAYS: dict[str, Any] = safetensors.numpy.load_file(old_states.FILE)


def saved(name: str, part: str) -> dict[str, Any]:
    start = f"{name}/{part}."
    return {key.removeprefix(start): x for key, x in ARRAYS.items() if key.startswith(start)}


def test_the_file_has_these_optimizers() -> None:
    assert {key.partition("/")[0] for key in ARRAYS} == old_states.OPTIMIZERS.keys()


@pytest.mark.parametrize("name", keys(old_states.OPTIMIZERS, {"averaged": "optax.monitor"}))
def test_an_old_state_loads_under_its_old_names_and_gives_the_updates_that_it_gave(name: str) -> None:
    optimizer, params, fresh = old_states.start(name)
    state, _ = tk.graft(fresh, saved(name, "state"))
    of_old, of_new = (old_states.some(old_states.update(name, optimizer, x, params)[0]) for x in (state, fresh))
    for leaf, expected in saved(name, "updates").items():
        np.testing.assert_allclose(of_old[f"updates.{leaf}"], expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(of_new[f"updates.{leaf}"], expected, rtol=1e-3), f"{leaf} does not depend on the state"
