"""A random program, run with plain Optax and with treekit, and the laws that it has to obey."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax as plain

import treekit as tk
import treekit.optax as ours
from tests.optax.cases import structure

from . import prelude
from .cases import PLAIN, STATE, TRAINED, WRAPPER, Case
from .prelude import is_inexact, value_of

jnp: Any = jax.numpy
STEPS = 3
Compare = Callable[[Any, Any], str]  # says how two trees differ, or nothing


class Run(NamedTuple):
    states: list[Any]  # the first is that of init
    updates: list[Any]
    params: list[Any]


class Failure(NamedTuple):
    law: str
    message: str  # what was seen


def evaluate(text: str, library: Any, tree: Any) -> Any:
    return eval(text, {**vars(prelude), "jax": jax, "np": np, "o": library, "params": tree})


def gradients_of(case: Case, tree: Any, step: int = 0) -> Any:
    return evaluate(f"gradients(params, {step}, {case.gradients})", ours, tree)


def run(case: Case, library: Any, *, tx: str = "", only: Callable[[Any], Any] = lambda tree: tree) -> Run:
    """Three steps of a program, with params and gradients as `only` leaves them."""
    whole = evaluate(case.params, library, None)
    tree = only(whole)
    optimizer = plain.with_extra_args_support(evaluate(tx or case.tx, library, tree))
    state = optimizer.init(tree)
    out = Run([state], [], [tree])
    for step in range(STEPS):
        grads = gradients_of(case, whole, step)
        grads = jax.tree.map(lambda x, g: None if x is None else g, tree, grads, is_leaf=lambda x: x is None)
        extra = {"value": prelude.loss(tree), "grad": grads, "value_fn": prelude.loss}
        updates, state = optimizer.update(grads, state, evaluate(case.updated_with, library, tree), **extra)
        if not prelude.has_refs(whole):  # to which nothing can be added
            tree = library.apply_updates(tree, updates)
        whole = eqx.combine(tree, whole)
        for each, new in zip(out, (state, updates, tree), strict=True):
            each.append(new)
    return out


def attempt(*args: Any, **kwargs: Any) -> Run | str:
    """A run, or what it raised."""
    try:
        return run(*args, **kwargs)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error)[:300]}"


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


# --------------------------------------------------------------------------------------------------------- comparing


def is_absent(x: Any) -> bool:
    """Whether an update is missing: None, or float0."""
    return x is None or getattr(x, "dtype", None) == jax.dtypes.float0


def same_structure(a: Any, b: Any) -> str:
    """How the structures of two trees differ, where None and float0 are the same; "" if they do not."""
    a, b = (jax.tree.map(lambda x: None if is_absent(x) else x, tree) for tree in (a, b))
    return "" if structure(a) == structure(b) else f"structure: {tk.tree_diff(a, b, values=False)}"


def same_leaves(a: Any, b: Any, differ: Compare) -> str:
    """Where the arrays of two trees of one structure differ, and how."""
    pairs = jax.tree_util.tree_leaves_with_path(a, is_leaf=is_absent)
    for (path, x), y in zip(pairs, jax.tree.leaves(b, is_leaf=is_absent), strict=True):
        if message := differ(value_of(x), value_of(y)):
            return f"at {jax.tree_util.keystr(path) or 'the root'}: {message}"
    return ""


def same_dtypes(a: Any, b: Any) -> str:
    def differ(x: Any, y: Any) -> str:
        one, other = (getattr(z, "dtype", None) for z in (x, y))
        return "" if one == other else f"dtypes {one} and {other}"

    return same_leaves(a, b, differ)


def coarsest(*trees: Any) -> float:
    """The unit in the last place of 1 in the narrowest dtype of these trees."""
    return max(
        (float(jnp.finfo(x.dtype).eps) for x in map(value_of, jax.tree.leaves(trees)) if is_inexact(x)), default=0.0
    )


def same_numbers(a: Any, b: Any, least: float) -> str:
    """Rounding aside. `least` is of the narrowest dtype they come of: what is compiled as a whole may round less."""

    def differ(x: Any, y: Any) -> str:
        if x is None or y is None or jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return ""  # no numbers
        if x.shape != y.shape:
            return f"shapes {x.shape} and {y.shape}"
        eps = max(least, coarsest(x, y))
        wide_x, wide_y = (np.asarray(z).astype(np.complex128) for z in (x, y))
        scale = float(np.max(np.abs(wide_y), initial=0.0, where=np.isfinite(wide_y)))
        rtol = (100 if eps < 1e-4 else 4) * eps  # a few units in the last place of a narrow dtype are much already
        is_close = np.allclose(wide_x, wide_y, rtol=rtol, atol=rtol * max(scale, 1e-3), equal_nan=True)
        return "" if is_close else f"{x!r} and {y!r}"

    return same_leaves(a, b, differ)


def same_trees(a: Any, b: Any, least: float) -> str:
    return same_structure(a, b) or same_numbers(a, b, least)


def without_holes(tree: Any) -> Any:
    """A tree with None for what Optax has for a leaf that is masked out."""

    def is_hole(x: object) -> bool:
        return isinstance(x, plain.MaskedNode)

    return jax.tree.map(lambda x: None if is_hole(x) else x, tree, is_leaf=is_hole)


def first(what: str, same: Compare, mine: list[Any], theirs: list[Any]) -> str:
    """What a comparison says of the first step in which it says something."""
    said = map(same, mine, theirs)
    return next((f"the {what} of step {i}: {message}" for i, message in enumerate(said) if message), "")


# -------------------------------------------------------------------------------------------------------------- laws

# Each of these returns None where there is nothing to compare with, "" where the law holds, else what was seen.


def equals_plain(case: Case, mine: Run | str) -> str | None:
    """What plain Optax can do has the same state structure and numbers, if treekit trains all that Optax does."""
    leaves = jax.tree.leaves(evaluate(case.params, ours, None))
    theirs = attempt(case, plain) if all(map(prelude.is_trained, leaves)) else ""
    if isinstance(theirs, str):
        return None
    if isinstance(mine, str):
        return mine
    structures = (
        first("state", same_structure, mine.states, theirs.states)
        or first("state", same_dtypes, mine.states[:1], theirs.states[:1])
        or first("updates", same_structure, mine.updates, theirs.updates)
    )
    if not case.gradients.startswith("None"):  # in a gradient of another dtype than its param, the two round elsewhere
        return structures
    numbers = functools.partial(same_numbers, least=coarsest(mine.states, mine.params))
    return (
        structures
        or first("updates", numbers, mine.updates, theirs.updates)
        or first("state", numbers, mine.states, theirs.states)
        or first("params", numbers, mine.params, theirs.params)
    )


def keeps_state(case: Case, mine: Run | str) -> str | None:
    """A state keeps its structure, shapes, dtypes and weak types; traced, the update is the same."""
    if isinstance(mine, str):
        return None
    for i, state in enumerate(mine.states[1:]):
        if difference := tk.tree_diff(mine.states[0], state, values=False):
            return f"after {i + 1} steps: {difference}"
    tree = evaluate(case.params, ours, None)
    if prelude.has_refs(tree):  # JAX traces them as arguments of their own only
        return None
    tx, params = (evaluate(text, ours, tree) for text in (case.tx, case.updated_with))
    grads = gradients_of(case, tree)
    arrays, rest = eqx.partition((grads, mine.states[0], params), eqx.is_array)

    def update(arrays: Any) -> Any:
        grads, state, params = eqx.combine(arrays, rest)
        return tx.update(grads, state, params, value=jnp.float32(1), grad=grads, value_fn=prelude.loss)

    try:
        with jax.disable_jit(False):
            traced = eqx.filter_eval_shape(update, arrays)
    except Exception as error:
        return f"traced, it raises {type(error).__name__}: {str(error)[:300]}"
    difference = tk.tree_diff((mine.updates[0], mine.states[0]), traced, values=False)
    return f"traced: {difference}" if difference else ""


def equals_part(case: Case, mine: Run | str) -> str | None:
    """On a raw model, `tx` does what it does on the leaves that are trained."""
    tree = evaluate(case.params, ours, None)
    part = prelude.trained_of(tree)
    if structure(part) == structure(tree) or not jax.tree.leaves(part):
        return None
    theirs = attempt(case, ours, only=prelude.trained_of)
    if isinstance(theirs, str):
        return None
    if isinstance(mine, str):
        return mine
    same = functools.partial(same_trees, least=coarsest(mine.states, mine.params))
    states = [list(map(without_holes, each.states)) for each in (mine, theirs)]  # of a raw mask there are holes
    return first("updates", same, mine.updates, theirs.updates) or first("state", same, *states)


def equals_wrapped(case: Case, mine: Run | str) -> str | None:
    """A wrapper that must change nothing changes nothing, but for the dtype in which another link has its updates."""
    if isinstance(mine, str):
        return None
    theirs = attempt(case, ours, tx=case.wrapped)
    if isinstance(theirs, str):
        return f"{case.wrapper} {theirs}"
    grads = gradients_of(case, evaluate(case.params, ours, None))
    same = functools.partial(same_trees, least=coarsest(mine.states, mine.params, grads))
    said = first("updates", same, theirs.updates, mine.updates)
    return said and f"{case.wrapper}: {said}"


LAWS: dict[str, Callable[[Case, Run | str], str | None]] = {
    PLAIN: equals_plain,
    STATE: keeps_state,
    TRAINED: equals_part,
    WRAPPER: equals_wrapped,
}


def failures(case: Case) -> tuple[list[Failure], set[str]]:
    """The laws that do not hold for a program, and those that could be asked about it."""
    with settings(case):
        mine = attempt(case, ours)
        said = {law: LAWS[law](case, mine) for law in (PLAIN, STATE, case.law)}
    return (
        [Failure(law, message) for law, message in said.items() if message],
        {law for law, message in said.items() if message is not None},
    )


def described(case: Case, failure: Failure) -> str:
    """What failed, in a program that runs from the root of the repository."""
    message = f"{failure.law}: {failure.message}".replace("\n", "\n#   ")
    imports = "from tests.fuzz.cases import Case\nfrom tests.fuzz.laws import failures"
    return f"# {message}\n{imports}\nprint(failures({case!r}))"
