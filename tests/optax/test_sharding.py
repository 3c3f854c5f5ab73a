"""Sharded params: the laws of `sharding_laws.py`, on 8 virtual devices, in one process and in two."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases, sharding_laws
from tests.processes import THREADS
from treekit import optax as tko

PIPE = subprocess.PIPE
SECONDS = 400  # what hangs is killed


def run_laws(*arguments: list[str], devices: int) -> list[dict[str, str]]:
    """What each process prints; one for each list of arguments."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUMPY_RANK_PROMOTION": "raise", "PJRT_NPROC": THREADS}
    environment = {**os.environ, "XLA_FLAGS": flags, **settings}
    command = [sys.executable, "-W", "error", "-m", sharding_laws.__name__]
    processes = [
        subprocess.Popen([*command, *each], env=environment, text=True, stdout=PIPE, stderr=PIPE) for each in arguments
    ]
    try:
        printed = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in printed]


def assert_none_fails(done: dict[str, str], table: list[Any]) -> None:
    assert len(done) == sum(len(names) for _, _, names in table)
    failures = {case: error for case, error in done.items() if error}
    assert not failures, "\n".join(f"{case}\n{error}" for case, error in failures.items())


def test_a_few_cases_on_8_devices() -> None:
    (done,) = run_laws(["quick"], devices=8)
    assert_none_fails(done, sharding_laws.QUICK)


@pytest.mark.slow
def test_on_8_devices() -> None:
    """Shardings, collectives and values, of every wrapper, under Auto and Explicit axes."""
    (done,) = run_laws([], devices=8)
    assert_none_fails(done, sharding_laws.TABLE)


@pytest.mark.slow
def test_on_two_processes_of_4_devices() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for done in run_laws([address, "0"], [address, "1"], devices=4):
        assert_none_fails(done, sharding_laws.ON_TWO_PROCESSES)


def test_an_init_that_closes_over_params_of_one_device_does_not_read_them() -> None:
    """They would be a constant in the program."""
    params = jnp.ones(3)
    assert not jax.make_jaxpr(lambda: tko.adam(0.1).init(params))().consts


WITHOUT_A_SECOND_TIE: list[Callable[[Any], Any]] = [
    lambda o: o.chain(o.clip(1.0), o.chain(o.adam(0.1))),
    lambda o: o.MultiSteps(o.adam(0.1), 2).gradient_transformation(),
    lambda o: o.conditionally_mask(o.adam(0.1), lambda step: step > 0),
]


@pytest.mark.parametrize("make", WITHOUT_A_SECOND_TIE)
def test_a_jitted_init_adds_one_operation_for_each_array_like_a_param(make: Callable[[Any], Any]) -> None:
    """A select each, and two operations for the flag of all."""
    params = [jnp.ones((2, 3)), jnp.ones(4)] * 10
    ours, theirs = (jax.make_jaxpr(make(o).init)(params) for o in (tko, optax))
    like_params = [x for x in ours.out_avals if x.shape]
    assert len(ours.eqns) - len(theirs.eqns) <= len(like_params) + 2


def test_derivatives_go_through_init() -> None:
    """With respect to the params, on which zeros do not depend, and a copy in the state does."""
    for tx, slope in ((tko.adam(0.1), 0.0), (tko.contrib.schedule_free_sgd(0.1), 1.0)):
        for jacobian in (jax.jacfwd, jax.jacrev):
            found = jacobian(lambda p, tx=tx: sum(x.sum() for x in jax.tree.leaves(tx.init(p)) if x.shape == (2,)))
            assert found(jnp.ones(2)).tolist() == [slope] * 2


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "partition": lambda: tko.partition({"a": tko.adam(0.1), "b": tko.sgd(0.1, momentum=0.9)}, {"w": "a", "b": "b"}),
    "params_ema": lambda: tko.chain(tko.adam(0.1), tko.params_ema(0.9)),
}


@pytest.mark.table
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_array_is_written_as_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX writes a tree that does not fit into its error, which copies each of its arrays from its devices."""
    tx, params, written = OPTIMIZERS[name](), cases.arrays(), 0

    def count(_: jax.Array) -> str:
        nonlocal written
        written += 1
        return ""

    monkeypatch.setattr(type(jnp.ones(())), "__repr__", count)
    state = tx.init(params)
    tx.update({**params, "b": None}, state, params)
    tko.apply_gradients(tx, params, state, params)
    tko.summary(tx, params)
    assert written == 0
