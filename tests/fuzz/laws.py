"""A random program, run with plain Optax and with treekit, and the laws that it has to obey."""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax as plain

import treekit as tk
import treekit.optax as ours
from treekit._base.jax import jtu

from . import prelude
from .cases import Case
from .compare import coarsest, same_dtypes, same_numbers, same_structure, same_trees, without_holes

STEPS = 3


class Run(NamedTuple):
    """What came of a program: the states, the first being that of init; the updates; and the params of each step."""

    states: list[Any]
    updates: list[Any]
    params: list[Any]


class Failure(NamedTuple):
    """A law that does not hold, and what was seen."""

    law: str
    message: str

    @property
    def key(self) -> str:
        """What is alike in failures of one cause, as far as a machine can tell."""
        return f"{self.law}: {re.sub(r'[0-9]+', '#', self.message)[:60]}"


def evaluate(text: str, library: Any, tree: Any) -> Any:
    """The value of an expression."""
    return eval(text, {**vars(prelude), "jax": jax, "np": np, "o": library, "params": tree})


def run(case: Case, library: Any, *, tx: str = "", only: Callable[[Any], Any] = lambda tree: tree) -> Run:
    """Three steps of a program, with params and gradients as `only` leaves them."""
    whole = evaluate(case.params, library, None)
    tree = only(whole)
    optimizer = plain.with_extra_args_support(evaluate(tx or case.tx, library, tree))
    state = optimizer.init(tree)
    out = Run([state], [], [tree])
    for step in range(STEPS):
        grads = only_like(tree, evaluate(f"gradients(params, {step}, {case.gradients})", library, whole))
        extra = {"value": prelude.loss(tree), "grad": grads, "value_fn": prelude.loss}
        updates, state = optimizer.update(grads, state, evaluate(case.updated_with, library, tree), **extra)
        if not any(map(prelude.is_ref, jax.tree.leaves(whole))):  # as `applied`, for a part of the params too
            tree = prelude.applied(library, tree, updates)
        whole = eqx.combine(tree, whole)
        out.states.append(state)
        out.updates.append(updates)
        out.params.append(tree)
    return out


def only_like(tree: Any, grads: Any) -> Any:
    """The gradients where a tree has leaves."""
    return jax.tree.map(lambda x, g: None if x is None else g, tree, grads, is_leaf=lambda x: x is None)


def attempt(*args: Any, **kwargs: Any) -> Run | Exception:
    """A run, or what it raised."""
    try:
        return run(*args, **kwargs)
    except Exception as error:
        return error


def describe(error: Exception) -> str:
    """The type of an error, and the beginning of its message."""
    return f"{type(error).__name__}: {str(error)[:300]}"


@contextlib.contextmanager
def settings(case: Case) -> Iterator[None]:
    """JAX as it is outside of tests, and quiet."""
    with (
        warnings.catch_warnings(),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.debug_nans(False),
        jax.disable_jit(case.disable_jit),
    ):
        warnings.simplefilter("ignore")
        yield


LAWS: dict[str, Callable[[Case, Run | Exception], str | None]] = {}


def failures(case: Case, laws: Iterable[str] | None = None) -> tuple[list[Failure], set[str]]:
    """The laws that do not hold for a program, and those that could be asked about it."""
    found, asked = [], set()
    with settings(case):
        mine = attempt(case, ours)
        for law in ("equals plain Optax", "keeps its state", case.law) if laws is None else laws:
            message = LAWS[law](case, mine)
            if message is not None:
                asked.add(law)
            if message:
                found.append(Failure(law, message))
    return found, asked


# Each of these returns None where there is nothing to compare with, "" where the law holds, else what was seen.


def equals_plain(case: Case, mine: Run | Exception) -> str | None:
    """What plain Optax can do has the same state structure and numbers."""
    theirs = attempt(case, plain)
    if isinstance(theirs, Exception):
        return None
    if isinstance(mine, Exception):
        return f"raises {describe(mine)}"
    numbers = functools.partial(same_numbers, eps=coarsest(mine.states, mine.params))
    return (
        first("the state of step", same_structure, mine.states, theirs.states)
        or first("the state of step", same_dtypes, mine.states[:1], theirs.states[:1])
        or first("the updates of step", same_structure, mine.updates, theirs.updates)
        or first("the updates of step", numbers, mine.updates, theirs.updates)
        or first("the state of step", numbers, mine.states, theirs.states)
        or first("the params of step", numbers, mine.params, theirs.params)
    )


def first(what: str, check: Callable[[Any, Any], str], mine: list[Any], theirs: list[Any]) -> str:
    """What a check says of the first step in which it says something."""
    said = (check(a, b) for a, b in zip(mine, theirs, strict=True))
    return next((f"{what} {i}: {message}" for i, message in enumerate(said) if message), "")


def keeps_state(case: Case, mine: Run | Exception) -> str | None:
    """A state keeps its structure, shapes, dtypes and weak types; traced, the update is the same."""
    if isinstance(mine, Exception):
        return None
    for i, state in enumerate(mine.states[1:]):
        if difference := tk.tree_diff(mine.states[0], state, values=False):
            return f"after {i + 1} steps: {difference}"
    tree = evaluate(case.params, ours, None)
    if any(map(prelude.is_ref, jax.tree.leaves(tree))):  # JAX traces them as arguments of their own only
        return None
    grads = evaluate(f"gradients(params, 0, {case.gradients})", ours, tree)
    try:
        updates, state = prelude.traced_update(
            evaluate(case.tx, ours, tree), grads, mine.states[0], evaluate(case.updated_with, ours, tree)
        )
    except Exception as error:
        return f"traced, it raises {describe(error)}"
    difference = tk.tree_diff((mine.updates[0], mine.states[0]), (updates, state), values=False)
    return f"traced: {difference}" if difference else ""


def equals_filtered(case: Case, mine: Run | Exception) -> str | None:
    """On a raw model, `filtered(tx)` does what `tx` does on its inexact arrays."""
    return _equals_part(case, attempt(case, ours, tx=f"o.filtered({case.tx})"), prelude.arrays_of)


def equals_parameters(case: Case, mine: Run | Exception) -> str | None:
    """On a raw model, `tx` does what it does on the leaves that can be parameters."""
    return _equals_part(case, mine, prelude.parameters_of)


def _equals_part(case: Case, mine: Run | Exception, only: Callable[[Any], Any]) -> str | None:
    tree = evaluate(case.params, ours, None)
    if jtu.tree_structure(only(tree)) == jtu.tree_structure(tree):
        return None
    theirs = attempt(case, ours, only=only)
    if isinstance(theirs, Exception):
        return None
    if isinstance(mine, Exception):
        return f"raises {describe(mine)}"
    alike = functools.partial(same_trees, eps=coarsest(mine.states, mine.params))
    if message := first("the updates of step", alike, mine.updates, theirs.updates):
        return message
    # A mask made of the raw model has a place for what is left out, as in plain Optax.
    return first("the state of step", alike, *(list(map(without_holes, each.states)) for each in (mine, theirs)))


def equals_wrapped(case: Case, mine: Run | Exception) -> str | None:
    """A wrapper that must change nothing changes nothing."""
    if isinstance(mine, Exception):
        return None
    theirs = attempt(case, ours, tx=case.wrapped)
    if isinstance(theirs, Exception):
        return f"{case.wrapper} raises {describe(theirs)}"
    alike = functools.partial(same_trees, eps=coarsest(mine.states, mine.params))
    return first(f"{case.wrapper}: the updates of step", alike, theirs.updates, mine.updates)


LAWS |= {
    "equals plain Optax": equals_plain,
    "keeps its state": keeps_state,
    "a raw model, filtered, equals its arrays": equals_filtered,
    "a raw model equals its parameters": equals_parameters,
    "a wrapper changes nothing": equals_wrapped,
}
