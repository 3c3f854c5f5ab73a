"""`check_donation`: which donated leaves a jitted function does not use, by name."""

import inspect
import textwrap
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import jax

from treekit._base.jax import jnp, jtu, untyped
from treekit._text.columns import WIDTH, in_columns
from treekit._text.describe import count, describe, describe_value
from treekit._text.lists import listed
from treekit.testing._case import by_path, is_jit_argument, shared_buffers, split


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
    named = OrderedDict(inspect.signature(f).bind(*args).arguments)
    arrays, args_with = split(args)
    names = [name for name, x in by_path(named).items() if is_jit_argument(x)]
    if not arrays:
        raise ValueError("check_donation found no array in the arguments, so there is nothing to donate")
    results: list[str] = []
    own: list[str] = []  # of each leaf, the result at its place, if the results have the structure of the arguments

    def run(*donated: Any) -> list[Any]:
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
        untyped.jit(run, donate_argnums=range(len(copies)))(*copies)

    wrong: list[str] = []
    unusable = [
        (name, kind) for name, kind, x in zip(names, kinds, copies, strict=True) if x.size and not x.is_deleted()
    ]
    if unusable:
        given, returned = Counter(kinds), Counter(results)
        rows: dict[tuple[str, str, str], None] = {}
        for name, kind in unusable:
            alike = [i for i, other in enumerate(kinds) if other == kind]
            changed = [i for i in alike if own and own[i] != kind]
            if not 0 < returned[kind] < given[kind]:
                read = "f does not read it, or the result is sharded in another way"
                rows[name, kind, read if returned[kind] else "no result has this shape and dtype"] = None
            elif changed:
                rows |= {(names[i], kind, f"the result at its place is {own[i]}"): None for i in changed}
            else:  # JAX chooses which of them to reuse
                why = f"{given[kind]} leaves have this shape and dtype, and {count(returned[kind], 'result')}"
                rows[listed(sorted(names[i] for i in alike)), kind, why] = None
        were = "was" if len(unusable) == 1 else "were"
        wrong.append(f"{len(unusable)} of {len(names)} donated leaves {were} not usable:")
        wrong += [textwrap.indent(row, "  ") for row in in_columns(list(rows), width=WIDTH - 2)]
        wrong.append("Return a new value for each, or do not donate it.")
    if shared := shared_buffers(named):
        wrong.append("These leaves share a buffer, which cannot be donated twice. Copy all but one with jnp.copy:")
        wrong += [f"  {', '.join([first, *others])}" for first, others in shared.items()]
    if wrong:
        raise AssertionError("\n".join(wrong))
