"""Every optimizer, wrapped in every way, on every kind of params: do the laws hold? treekit and plain Optax.

A cell is one (optimizer, wrapper, kind of params). `run_cell` says what is asked of it, results/matrix.md the outcome.

    python -m benchmarks.evidence.matrix                   the whole matrix, into results/matrix.md (more than an hour)
    MINUTES=30 python -m benchmarks.evidence.matrix        as many cells, drawn at random, as that allows
    SEED=1 MINUTES=30 python -m benchmarks.evidence.matrix other cells
    QUICK=1 python -m benchmarks.evidence.matrix           the same for three minutes, printed
    JOBS=1 python -m benchmarks.evidence.matrix            in one process; by default there is one for each core

Ctrl-C ends it early: the page then has the cells that ran.
"""

import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax as plain_optax

import treekit as tk
import treekit.optax as treekit_optax
from benchmarks.compile_fast import COMPILE_FAST
from benchmarks.evidence.matrix_cells import KINDS_OF_PARAMS, OPTIMIZERS, WRAPPERS, Factory, Kind, Wrapper
from benchmarks.evidence.matrix_page import Outcome, page
from treekit._base.jax import jtu, untyped
from treekit._text.describe import describe_error
from treekit.testing._transformation import transformation_laws
from treekit.testing._transformation_laws import LAWS

jnp: Any = untyped.numpy
SEED = int(os.environ.get("SEED", 0))
BESIDE = 16  # plain Optax is asked for its laws in every sixteenth cell: to ask both takes twice as long
STEPS = 40
COMPARED = 4  # steps after which the numbers are compared: rounding grows with each


Cell = tuple[str, str, str, bool]  # optimizer, wrapper and kind of params, and whether plain Optax is asked too


class Problem(NamedTuple):
    """Least squares over the inexact leaves: params to start from, and the dtype of the gradient of each."""

    params: Any
    grad_dtypes: tuple[Any, ...]

    def loss(self, params: Any, obj_fn: Any = None) -> Any:
        """In f32 at least, of another steepness for every element, so that no line search is done at once.

        A line search refuses extra arguments that its function does not take; `obj_fn` is for sophia.
        """
        del obj_fn

        def of(x: Any) -> Any:
            wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
            return jnp.sum(jnp.linspace(0.5, 1, x.size).reshape(x.shape) * jnp.abs(wide - 0.3) ** 2)

        return sum(map(of, trained_leaves(params)), jnp.zeros([], jnp.float32))

    def value_and_grads(self, params: Any) -> tuple[Any, Any]:
        """The loss, and the gradients as Equinox gives them: None where a leaf is not an inexact array."""
        leaves, treedef = jtu.tree_flatten(params)

        def loss_of(trained: list[Any]) -> Any:
            left = iter(trained)
            return self.loss(treedef.unflatten([next(left) if tk.is_inexact_array(x) else x for x in leaves]))

        value, grads = jax.value_and_grad(loss_of)(trained_leaves(params))
        cast = iter([jnp.conj(g).astype(dtype) for g, dtype in zip(grads, self.grad_dtypes, strict=True)])
        return value, treedef.unflatten([next(cast) if tk.is_inexact_array(x) else None for x in leaves])

    def extra(self, value: Any, grads: Any) -> dict[str, Any]:
        """What line searches and the like ask for."""
        return {"value": value, "grad": grads, "value_fn": self.loss, "obj_fn": self.loss}

    def step(self, o: Any, tx: Any, params: Any, state: Any) -> tuple[Any, Any, Any]:
        """The loss before, the new params and the new state."""
        value, grads = self.value_and_grads(params)
        updates, state = tx.update(grads, state, params, **self.extra(value, grads))
        return value, o.apply_updates(params, updates), state


def trained_leaves(params: Any) -> list[Any]:
    """The leaves that the loss depends on."""
    return list(filter(tk.is_inexact_array, jax.tree.leaves(params)))


def problem_of(kind: Kind) -> Problem:
    """The problem on params of a kind, as they are."""
    params = kind.make()
    return Problem(params, tuple(kind.grad_dtype or x.dtype for x in trained_leaves(params)))


def listed(problem: Problem) -> Problem:
    """The arrays that are trained in a plain list, with None for everything else."""
    leaves = jax.tree.leaves(problem.params, is_leaf=lambda x: x is None)
    return Problem([x if tk.is_inexact_array(x) else None for x in leaves], problem.grad_dtypes)


class Trained(NamedTuple):
    """The trained leaves after each step, and the loss before it."""

    leaves: Any
    losses: Any


def train(o: Any, tx: Any, problem: Problem, keep: Callable[[Any], Any] = lambda new: new) -> Trained:
    """Some steps in a scan, whose carry has to keep its structure and dtypes; new params go through `keep`."""
    arrays, static = tk.partition(problem.params)
    tx = plain_optax.with_extra_args_support(tx)

    def step(carry: Any, _: Any) -> tuple[Any, Trained]:
        arrays, state = carry
        value, new, state = problem.step(o, tx, tk.combine(arrays, static), state)
        new = keep(new)
        return (tk.filter_arrays(new), state), Trained(trained_leaves(new), value)

    _, trained = jax.lax.scan(step, (arrays, tx.init(problem.params)), length=STEPS)
    return trained


def broken_law(tx: Any, problem: Problem) -> str | None:
    """The first law of a transformation that does not hold, or None."""
    value, grads = problem.value_and_grads(problem.params)
    laws = [name for name in LAWS if name != "moment"]
    broken = transformation_laws(tx, problem.params, grads, problem.extra(value, grads), laws=laws)
    return next((f"{law.law}: {' '.join(law.found.split())}" for law in broken), None)


def attempt(o: Any, make: Factory, wrap: Wrapper, problem: Problem) -> tuple[str | None, Any]:
    """Why a cell is not held, whatever it may raise; or what became of training."""
    try:
        if reason := broken_law(wrap(o, make), problem):
            return reason, None
        trained = train(o, wrap(o, make), problem)
    except Exception as error:
        return describe_error(error), None
    if any(bool(jnp.isnan(x).any()) for x in jax.tree.leaves(trained)):
        return f"training gives no NaN: NaN within {STEPS} steps", None
    return None, trained


def trained_by_optax(
    make: Factory, wrap: Wrapper, problem: Problem, keep: Callable[[Any], Any] = lambda new: new
) -> Trained | None:
    """What becomes of training with plain Optax, where that is possible without dropping imaginary parts."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*complex")
            return train(plain_optax, wrap(plain_optax, make), problem, keep)
    except Exception:  # there is nothing to compare with
        return None


def differ(ours: Trained, theirs: Trained) -> str | None:
    """Whether the params are other numbers: by more than a unit in the last place for each of a few steps.

    After the first step in the dtype of each leaf; then in the narrowest, since line searches mix the leaves.
    """
    narrowest = max((float(jnp.finfo(x.dtype).eps) for x in ours.leaves), default=0.0)
    for step in (0, COMPARED - 1):
        for x, y in zip(ours.leaves, theirs.leaves, strict=True):
            eps = narrowest if step else float(jnp.finfo(x.dtype).eps)
            a, b = (np.asarray(z[step]).astype(np.complex128) for z in (x, y))
            off = float(np.max(np.abs(a - b) / (np.abs(b) + 1e-1)))
            if not off <= max(COMPARED * eps, 1e-6):
                return f"numbers agree with plain Optax's on the same leaves in a list: off by {off:.1e} in {x.dtype}"
    return None


def falls_less(ours: Trained, make: Factory, wrap: Wrapper, problem: Problem) -> str | None:
    """Whether the loss falls by less than half of what it does when all is f32 but the params between two steps."""
    narrow = listed(problem)
    if all(x.dtype.itemsize >= 4 for x in jax.tree.leaves(narrow.params)):
        return None

    def rounded(new: list[Any]) -> list[Any]:
        out: list[Any] = jax.tree.map(lambda x, old: x.astype(old.dtype).astype(x.dtype), new, narrow.params)
        return out

    params = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), narrow.params)
    grad_dtypes = tuple(jnp.promote_types(dtype, jnp.float32) for dtype in narrow.grad_dtypes)
    wide = Problem(params, grad_dtypes)
    theirs = trained_by_optax(make, wrap, wide, rounded)
    if theirs is None:
        return None
    first = float(theirs.losses[0])
    fall, wanted = (float(x.losses[0] - x.losses[-1]) for x in (ours, theirs))
    if fall >= 0.5 * wanted - 0.02 * first:
        return None
    return f"the loss falls as in f32: by {fall:.2f} of {first:.2f}, in f32 by {wanted:.2f}"


def run_cell(cell: Cell) -> Outcome:
    """What becomes of one cell, with treekit and, where asked for, with plain Optax."""
    optimizer, wrapper, params, beside = cell
    make, wrap, kind = OPTIMIZERS[optimizer], WRAPPERS[wrapper], KINDS_OF_PARAMS[params]
    with warnings.catch_warnings(), jax.enable_x64(kind.x64):
        warnings.simplefilter("ignore")
        problem = problem_of(kind)
        theirs = attempt(plain_optax, make, wrap, problem)[0] if beside else None
        ours, trained = attempt(treekit_optax, make, wrap, problem)
        if ours is None:
            plain = trained_by_optax(make, wrap, listed(problem))
            ours = (plain and differ(trained, plain)) or falls_less(trained, make, wrap, problem)
        exception = None if ours is None else bare_failure(make, problem)
    return Outcome(*cell, ours, theirs, exception)


def bare_failure(make: Factory, problem: Problem) -> str | None:
    """What the bare transformation of plain Optax raises, or does, on the same leaves in a plain list."""
    bare = listed(problem)
    tx = plain_optax.with_extra_args_support(make(plain_optax))
    try:
        params, state = bare.params, tx.init(bare.params)
        step = jax.jit(lambda params, state: bare.step(plain_optax, tx, params, state))
        for _ in range(STEPS):
            _, params, state = step(params, state)
    except Exception as error:
        return describe_error(error)
    if any(bool(jnp.isnan(x).any()) for x in jax.tree.leaves(params)):
        return f"NaN within {STEPS} steps"
    return None


def all_cells() -> list[Cell]:
    """Every (optimizer, wrapper, kind of params), in an order that only the seed decides."""
    cells = list(itertools.product(OPTIMIZERS, WRAPPERS, KINDS_OF_PARAMS))
    random.Random(SEED).shuffle(cells)
    return [(*cell, i % BESIDE == 0) for i, cell in enumerate(cells)]


def measure(cells: Iterable[Cell], minutes: float, jobs: int) -> list[Outcome]:
    """The outcomes of as many cells as the minutes allow, or until Ctrl-C; stderr names those not held meanwhile."""
    cells, outcomes, start = list(cells), [], time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        pool = multiprocessing.get_context("spawn").Pool(jobs, _begin, (cache,), maxtasksperchild=200)
        with pool, contextlib.suppress(KeyboardInterrupt):
            for outcome in pool.imap_unordered(run_cell, cells):
                outcomes.append(outcome)
                if outcome.treekit is not None:
                    print(f"\r{' / '.join(outcome[:3])}: {outcome.treekit}", file=sys.stderr)
                if len(outcomes) % 20 == 0:
                    print(f"\r{len(outcomes)} of {len(cells)} cells", end="", file=sys.stderr)
                if time.monotonic() - start > 60 * minutes:
                    break
    print(file=sys.stderr)
    return outcomes


def _begin(cache: str) -> None:
    """In each process: a program is compiled once, in whatever cell it comes up, and holds no lines of source.

    These would take a sixth of the time. Ctrl-C is for the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    untyped.config.update("jax_compilation_cache_dir", cache)
    untyped.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    untyped.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    untyped.config.update("jax_traceback_in_locations_limit", 0)
    gc.freeze()


def main() -> None:
    """Run the matrix and write the page."""
    os.environ["XLA_FLAGS"] = f"{COMPILE_FAST} {os.environ.get('XLA_FLAGS', '')}"
    quick = "QUICK" in os.environ
    minutes = float(os.environ.get("MINUTES", 3 if quick else "inf"))
    cells = all_cells()
    outcomes = measure(cells, minutes, int(os.environ.get("JOBS", os.cpu_count() or 1)))
    text = page(outcomes, len(cells), SEED)
    if quick:
        print(text)
    else:
        (Path(__file__).parents[1] / "results" / "matrix.md").write_text(text)


if __name__ == "__main__":
    main()
