"""Sharded params: the laws of `sharding_laws.py`, on 8 virtual devices, in one process and in two."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.optax import cases
from tests.processes import THREADS
from treekit import optax as tko
from treekit import training

PIPE = subprocess.PIPE
LAWS = Path(__file__).with_name("sharding_laws.py")
SECONDS = 400  # what hangs is killed
QUICK = ["test_chosen_sharding", "test_rounding", "test_init[auto-adamw]", "test_init[explicit-adamw]"]
QUICK += ["test_steps_in_shard_map_that_some_devices_skip"]
QUICK += ["test_a_replicated_param_in_shard_map_beside_one_that_decides"]
QUICK += ["test_one_select_for_each_array", "test_derivatives_of_init", "test_shared_memory"]
QUICK += ["test_init[auto-adafactor]", "test_params_on_the_host[auto-adam]"]
QUICK += ["test_steps[auto-multi_steps]", "test_steps[explicit-adam]"]
QUICK += ["test_step_that_only_accumulates[explicit-multi_steps]"]
IN_TWO = ["test_steps[auto-finite_of_multi_steps]", "test_steps[explicit-of_clipped]"]
IN_TWO += ["test_step_that_only_accumulates[auto-of_clipped]"]
IN_TWO += [f"test_init[auto-{name}]" for name in ("adamw", "noise", "muon")]


def assert_laws_hold(laws: list[str], processes: int = 1) -> None:
    """Run these laws, or all if none is named, on 8 devices; an error shows what pytest says of those that fail."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={8 // processes}"
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUMPY_RANK_PROMOTION": "raise", "PJRT_NPROC": THREADS, "XLA_FLAGS": flags}
    places = [f"{address} {i}" for i in range(processes)] if processes > 1 else [""]
    # Without conftest.py, which starts JAX, and without the options of the other tests.
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--import-mode=importlib", *([f"{LAWS}::{law}" for law in laws] or [str(LAWS)])]
    started = [
        subprocess.Popen(command, env={**os.environ, **settings, "PROCESS": place}, text=True, stdout=PIPE, stderr=PIPE)
        for place in places
    ]
    try:
        printed = ["".join(process.communicate(timeout=SECONDS)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, output in zip(started, printed, strict=True):
        if process.returncode != 0:
            pytest.fail(output, pytrace=False)


def test_a_few_cases_on_8_devices() -> None:
    assert_laws_hold(QUICK)


@pytest.mark.slow
def test_on_8_devices() -> None:
    """Shardings, collectives and values, of every wrapper, under Auto and Explicit axes."""
    assert_laws_hold([])


@pytest.mark.slow
def test_on_two_processes_of_4_devices() -> None:
    assert_laws_hold(IN_TWO, processes=2)


def test_an_init_that_closes_over_params_of_one_device_does_not_read_them() -> None:
    """They would be a constant in the program."""
    params = jnp.ones(3)
    assert not jax.make_jaxpr(lambda: tko.adam(0.1).init(params))().consts


def test_no_array_is_written_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX writes a tree that does not fit into its error, which copies each of its arrays from its devices."""
    groups = tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1, momentum=0.9)}, {"w": "a", "b": "b"})
    tx, params, written = tko.chain(groups, training.params_ema(0.9)), cases.arrays(), list[jax.Array]()

    def write(array: jax.Array) -> str:
        written.append(array)
        return ""

    monkeypatch.setattr(type(jnp.ones(())), "__repr__", write)
    state = tx.init(params)
    tx.update({**params, "b": None}, state, params)
    training.apply_gradients(tx, params, state, params)
    training.summary(tx, params)
    assert not written
