"""`check_donation`: which donated leaves a jitted function does not use, by name."""

import inspect
import textwrap
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from treekit._base.jax import jnp, jtu, untyped
from treekit._text.columns import WIDTH, in_columns
from treekit._text.describe import count, describe, describe_value
from treekit._text.lists import listed
from treekit.testing._trees import by_path, is_jit_argument, shared_buffers, split


def check_donation(f: Callable[..., object], *args: object) -> None:
    """Check that a jitted function reuses the memory of all its arguments for its results, if they are donated.

    It runs `jax.jit(f)` once on copies of the arguments, with all of them donated, and looks at which were deleted.
    Close over what you do not donate, such as a batch: `check_donation(lambda m, s: step(m, s, batch), model, state)`.

    Args:
        f: a function, such as a training step. It may be jitted already.
        *args: its arguments: pytrees, such as whole models. Arrays are donated, other leaves are constants.

    Raises:
        AssertionError: a donated leaf was not usable, since no result is left whose memory it could be; or two leaves
            share a buffer, which cannot be donated twice. The message lists each by name.
        TypeError: `f` is not a function, but perhaps what it returned.
        ValueError: there is no array in the arguments.

    >>> import jax.numpy as jnp
    >>> def step(params, batch):
    ...     return {"w": params["w"] - batch.mean()}
    >>> check_donation(lambda params: step(params, jnp.ones(5)), {"w": jnp.ones(3)})
    >>> check_donation(step, {"w": jnp.ones(3)}, jnp.ones(5))
    Traceback (most recent call last):
    AssertionError: 1 of 2 donated leaves was not usable:
      batch  f32[5]  no result has this shape and dtype
    Return a new value for each, or do not donate it.
    """
    if not callable(f):
        raise TypeError(
            f"check_donation takes a function and its arguments, check_donation(step, params, state); found "
            f"{describe_value(f)}. To close over others, write lambda params, state: step(params, state, batch)"
        )
    named = _named(f, args)
    names = [name for name, x in by_path(named).items() if is_jit_argument(x)]
    if not names:
        order = ". The arguments are (f, *args): are they in the right order?" if any(map(callable, args)) else ""
        raise ValueError(f"check_donation found no array in the arguments, so there is nothing to donate{order}")
    run = _run(f, args)
    wrong: list[str] = []
    if run.unusable:
        were = "was" if len(run.unusable) == 1 else "were"
        wrong.append(f"{len(run.unusable)} of {len(names)} donated leaves {were} not usable:")
        wrong += [textwrap.indent(row, "  ") for row in in_columns(_explain(run, names), width=WIDTH - 2)]
        wrong.append("Return a new value for each, or do not donate it.")
    if shared := shared_buffers(named):
        wrong.append("These leaves share a buffer, which cannot be donated twice. Copy all but one with jnp.copy:")
        wrong += [f"  {', '.join([first, *others])}" for first, others in shared.items()]
    if wrong:
        raise AssertionError("\n".join(wrong))


def _named(f: Callable[..., object], args: tuple[object, ...]) -> "OrderedDict[str, object]":
    """Return the arguments by the names of the parameters of `f`; by index, if it is a builtin without a signature."""
    try:
        signature = inspect.signature(f)
    except ValueError:
        return OrderedDict((str(i), x) for i, x in enumerate(args))
    return OrderedDict(signature.bind(*args).arguments)


class _Run(NamedTuple):
    """What a function did with its donated leaves.

    Attributes:
        kinds: the shape and dtype of each donated leaf.
        unusable: the indices of the leaves whose memory was not reused.
        results: the shape and dtype of each array that the function returned.
        own: of each donated leaf, the result at its place; empty unless the results have the structure of the
            arguments.
    """

    kinds: list[str]
    unusable: list[int]
    results: list[str]
    own: list[str]


def _run(f: Callable[..., object], args: tuple[object, ...]) -> _Run:
    """Run a jitted function on copies of its arguments, with all arrays among them donated."""
    arrays, args_with = split(args)
    results: list[str] = []
    own: list[str] = []

    def on_arrays(*donated: Any) -> list[Any]:
        out = f(*args_with(list(donated)))
        leaves = jtu.tree_leaves(out)
        results[:] = [describe(x) for x in leaves if is_jit_argument(x)]
        given = args[0] if len(args) == 1 else args
        if jtu.tree_structure(out) == jtu.tree_structure(given):
            pairs = zip(jtu.tree_leaves(given), leaves, strict=True)
            own[:] = [describe(y) for x, y in pairs if is_jit_argument(x)]
        return [x for x in leaves if is_jit_argument(x)]

    copies = [jnp.array(x, copy=True) for x in arrays]
    kinds = [describe(x) for x in copies]
    with warnings.catch_warnings(), jax.debug_nans(False), jax.debug_infs(False):  # with these, JAX donates nothing
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        untyped.jit(on_arrays, donate_argnums=range(len(copies)))(*copies)
    unusable = [i for i, x in enumerate(copies) if x.size and not x.is_deleted()]
    return _Run(kinds, unusable, results, own)


def _explain(run: _Run, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the names of unusable leaves, their shape and dtype, and why.

    Of each shape and dtype, the results are counted. The first row that holds:

    | results | why |
    |---|---|
    | none | no result has it |
    | as many as there are leaves, or more | f does not read the leaf, or the sharding differs |
    | fewer, and at the place of some leaf is another result | this leaf has changed |
    | fewer | JAX chooses which leaves to reuse, so all are named |
    """
    rows: dict[int, tuple[str, str, str]] = {}  # by the index of the leaf, or of the first of several
    for kind in {run.kinds[i] for i in run.unusable}:
        alike = [i for i, other in enumerate(run.kinds) if other == kind]
        unusable = [i for i in run.unusable if run.kinds[i] == kind]
        changed = [i for i in alike if run.own and run.own[i] != kind]
        returned = run.results.count(kind)
        if returned == 0:
            why = "no result has this shape and dtype"
            rows |= {i: (names[i], kind, why) for i in unusable}
        elif returned >= len(alike):
            why = "f does not read it, or the result is sharded in another way"
            rows |= {i: (names[i], kind, why) for i in unusable}
        elif changed:
            rows |= {i: (names[i], kind, f"the result at its place is {run.own[i]}") for i in changed}
        else:
            why = f"{len(alike)} leaves have this shape and dtype, and {count(returned, 'result')}"
            rows[alike[0]] = (listed(sorted(names[i] for i in alike)), kind, why)
    return [rows[i] for i in sorted(rows)]
