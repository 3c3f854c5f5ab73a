"""The laws of an optimizer's state: update preserves its types, and it can be jitted, donated, pickled and rounded."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import jax

from treekit._base.describe import describe_error
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_inexact_array, is_narrow
from treekit._base.types import OptState, Params, PyTree
from treekit._diff.diff import TreeDiff, tree_diff
from treekit._diff.leaf_diff import STRUCTURE
from treekit._round import widen
from treekit.check._case import STEPS, Case, Run, by_path, is_jit_argument, listed, split
from treekit.check._laws import KEEP_WIDE, PRESERVE, Violation

_SMALL = 2.0**-7  # a gradient that is small compared with 1; a power of two, so exact
_WORK = 20_000_000  # how many elements the law of narrow state may update


def keeps_structure(case: Case, run: Run) -> Iterator[Violation]:
    """Law: update preserves structure and shapes of the state."""
    yield from _keeps(run, "structure and shapes", STRUCTURE, "return from update what init returns, with other values")


def keeps_dtypes(case: Case, run: Run) -> Iterator[Violation]:
    """Law: update preserves the dtypes of the state."""
    yield from _keeps(run, "dtypes", ("dtype",), PRESERVE)


def keeps_weak_types(case: Case, run: Run) -> Iterator[Violation]:
    """Law: update preserves the weak types of the state."""
    yield from _keeps(run, "weak types", ("weak type",), PRESERVE)


def _keeps(run: Run, what: str, kinds: tuple[str, ...], fix: str) -> Iterator[Violation]:
    diff = TreeDiff(d for d in tree_diff(run.state, run.last, values=False) if d.kind in kinds)
    if diff:
        yield Violation(
            f"update keeps the {what} of the state",
            found=f"(init | update)\n{diff}",
            effect="scan and cond reject it, jit compiles again, and memory may grow",
            fix=fix,
        )


def can_be_made_under_jit(case: Case, run: Run) -> Iterator[Violation]:
    """Law: a jitted init gives the same state."""
    arrays, params_with = split(case.params)

    def init(arrays: list[Any]) -> Any:
        return case.tx.init(params_with(arrays))

    try:
        diff = tree_diff(run.state, untyped.eval_shape(init, arrays), values=False)
        found = f"(init | init under jit)\n{diff}" if diff else ""
    except Exception as error:
        found = describe_error(error)
    if found:
        yield Violation(
            "init can be jitted, and gives the same state",
            found,
            effect="the state cannot be created with a sharding, and eval_shape cannot compute its size",
            fix="let init depend only on the shapes and dtypes of the params, and use jax.numpy; " + PRESERVE,
        )


def can_be_donated(case: Case, run: Run) -> Iterator[Violation]:
    """Law: params and state do not share buffers."""
    owners = {buffer: f"params.{path}" for path, buffer in _buffers(case.params).items()}
    for function, state in (("init", run.state), ("update", run.second)):
        taken, shared = dict(owners), list[str]()
        for path, buffer in _buffers(state).items():
            if buffer in taken:
                shared.append(f"state.{path} is {taken[buffer]}")
            taken.setdefault(buffer, f"state.{path}")
        if shared:
            yield Violation(
                f"the state that {function} gives shares no buffer with the params, and none within itself",
                found=listed(shared),
                effect="a step that donates both params and state fails, since one buffer is donated twice",
                fix=f"copy the state once, with jax.tree.map(jnp.copy, state), or let {function} copy what it stores",
            )
            return


def _buffers(tree: PyTree) -> dict[str, int]:
    """Return the address of each non-empty array on this host, by key path; for a sharded one, that of a shard."""
    found: dict[str, int] = {}
    for path, x in by_path(tree).items():
        if isinstance(x, jax.Array) and is_jit_argument(x) and x.size and x.is_fully_addressable:
            data: Any = jax.random.key_data(x) if issubdtype(x.dtype, jax.dtypes.prng_key) else x
            found[path] = data.addressable_shards[0].data.unsafe_buffer_pointer()
    return found


def can_be_pickled(case: Case, run: Run) -> Iterator[Violation]:
    """Law: the state can be pickled."""
    try:
        diff = tree_diff(run.second, pickle.loads(pickle.dumps(run.second)))
        found = f"(saved | loaded)\n{diff}" if any(each.kind != "sharding" for each in diff) else ""
    except Exception as error:
        if not _can_pickle_structure(case.params):
            return  # the state contains static values of the params, so this is not the optimizer's fault
        found = describe_error(error)
    if found:
        yield Violation(
            "the state can be pickled and comes back the same",
            found,
            effect="training cannot be stopped and resumed",
            fix="let the state consist of arrays in NamedTuples, or in nodes whose classes are defined in a module",
        )


def _can_pickle_structure(params: Params) -> bool:
    """Whether nodes and static values can be pickled; functions among the leaves are not in the state."""
    leaves, treedef = jtu.tree_flatten(params)
    try:
        pickle.dumps(treedef.unflatten([x if is_jit_argument(x) else None for x in leaves]))
    except Exception:
        return False
    return True


def narrow_state_decays(case: Case, run: Run) -> Iterator[Violation]:
    """Law: floats of less than 32 bits decay about as much as they do in f32."""
    narrow = {path for path, x in by_path(run.state).items() if is_narrow(x)}
    if not (narrow and run.keeps_types()):
        return
    try:
        decay = _decay(case, run.state, lambda state: state)
        wide = Case(case.tx, widen(case.params), widen(case.grads), widen(case.extra))
        wide_decay = _decay(wide, widen(run.state), widen)
    except Exception:  # it fails in f32, so nothing can be compared
        return
    stuck = [
        f"state.{path} fell by {decay[path]:.1%}, in f32 by {wide_decay[path]:.1%}"
        for path in narrow
        if wide_decay[path] > 0.03 and decay[path] < 0.25 * wide_decay[path]
    ]
    if stuck:
        yield Violation(
            "state of less than 32 bits falls when the gradients do",
            found=f"with {STEPS} large gradients and then small ones, {listed(stuck)}",
            effect="a moment that was large once is rounded back to itself at each step, so steps stay small",
            fix=f'{KEEP_WIDE}; or {PRESERVE[:-1]}, rounding="stochastic"), which needs no more memory',
        )


def _decay(case: Case, state: OptState, cast: Callable[[Any], Any]) -> dict[str, float]:
    """Return the fraction by which each floating-point leaf of the state decays after a few large gradients."""
    small = max(64, min(1000, _WORK // max(1, sum(x.size for x in jtu.tree_leaves(case.arrays)))))

    def step(state: OptState, scale: Any) -> tuple[Any, None]:
        return cast(case.update(case.arrays_with_grads(lambda g: g * scale.astype(g.dtype)), state)[1]), None

    def scan(state: OptState, scales: object) -> Any:
        return lax.scan(step, state, scales)[0]

    def size(x: Any) -> float:
        return float(jnp.abs(x.astype(jnp.float32)).sum())

    jitted = untyped.jit(scan)
    peak = jitted(state, jnp.ones(STEPS))
    last = by_path(jitted(peak, jnp.full(small, _SMALL)))
    pairs = {path: (size(x), size(last[path])) for path, x in by_path(peak).items() if is_inexact_array(x)}
    return {path: 1 - after / before if before > 0 else 0.0 for path, (before, after) in pairs.items()}
