"""A failing program, printed so that it can be run."""

from .cases import Case
from .laws import Failure

PROGRAM = """\
# {message}
import jax, numpy as np, optax as plain, treekit.optax as tko
from tests.fuzz.prelude import *

params = {params}
def make(o, params):
    return {tx}
def train(o, params, make=make):
    tx = plain.with_extra_args_support(make(o, params))
    state = tx.init(params)
    for step in range(3):
        grads = gradients(params, step, {gradients})
        updates, state = tx.update(grads, state, {updated_with}, value=loss(params), grad=grads, value_fn=loss)
        params = applied(o, params, updates)
        print(step, updates, state, sep="\\n")
with jax.disable_jit({disable_jit}):
{runs}
"""
RUNS = {
    "equals plain Optax": "    train(plain, params)\n    train(tko, params)",
    "keeps its state": "    train(tko, params)\ntx = make(tko, params)\n"
    "print(traced_update(tx, gradients(params, 0, GRADIENTS), tx.init(params), UPDATED_WITH))",
    "a raw model, filtered, equals its arrays": "    train(tko, arrays_of(params))\n"
    "    train(tko, params, lambda o, params: o.filtered(make(o, params)))",
    "a raw model equals its parameters": "    train(tko, parameters_of(params))\n    train(tko, params)",
    "a wrapper changes nothing": "    train(tko, params)\n    train(tko, params, lambda o, params: WRAPPED)",
}


def program(case: Case, failure: Failure) -> str:
    """A program that shows what failed; it runs from the root of the repository."""
    runs = RUNS[failure.law].replace("GRADIENTS", case.gradients)
    runs = runs.replace("UPDATED_WITH", case.updated_with)
    return PROGRAM.format(
        message=f"{failure.law}: {failure.message}".replace("\n", "\n#   "),
        params=case.params,
        tx=case.tx,
        gradients=case.gradients,
        disable_jit=case.disable_jit,
        updated_with=case.updated_with,
        runs=runs.replace("WRAPPED", case.wrapped),
    )
