"""The laws of a gradient transformation: its state, its updates, and that it runs under every transform of JAX."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.describe import describe_error
from treekit._base.dtype import dtype_of, has_no_update, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.key_path import path_name
from treekit._base.predicates import is_inexact_array, is_narrow, is_parameter
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, Updates
from treekit._leaf_diff import STRUCTURE
from treekit._round import widen
from treekit._tree_diff import TreeDiff, tree_diff
from treekit.testing._case import (
    STEPS,
    Case,
    Run,
    all_finite,
    buffers,
    by_path,
    is_jit_argument,
    listed,
    nan_paths,
    split,
    without,
)
from treekit.testing._violations import FILTER, KEEP_WIDE, PRESERVE, Violation

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
    owners = {buffer: f"params.{path}" for path, buffer in buffers(case.params).items()}
    for function, state in (("init", run.state), ("update", run.second)):
        taken, shared = dict(owners), list[str]()
        for path, buffer in buffers(state).items():
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


_PURE = "write update as a function of its arguments only, with jax.numpy and jax.lax"

_AFTER = 40  # steps within which a NaN must disappear from the state; longer than a round of accumulation
_MEMBERS_DIFFER = 0.1  # as a fraction of the largest value, which is more than two compilations differ by rounding


def update_raises(error: Exception) -> Violation:
    """Return the violation for an update that raises."""
    if isinstance(error, TypeError) and "required" in str(error) and "argument" in str(error):
        return Violation(
            "update runs with the extra arguments that you passed",
            found=describe_error(error),
            effect="nothing else can be checked without these arguments",
            fix="pass them by name, such as check_transformation(tx, params, value=..., grad=..., value_fn=...)",
        )
    return Violation(
        "update takes the gradients and its own state, under jit",
        found=describe_error(error),
        effect="the optimizer cannot be used with these gradients",
        fix=f"{FILTER} if these leaves are not to be trained, {PRESERVE} if the error is about dtypes; else {_PURE}",
    )


def gives_updates_like_the_gradients(case: Case, run: Run) -> Iterator[Violation]:
    """Law: updates have the structure of the gradients, and the wider dtype of gradient and param.

    An update may be None where there is a gradient: `filtered` returns it for leaves that are not trained.
    """
    leaves = jtu.tree_flatten_with_path(run.updates, is_leaf=is_none)[0]
    frozen = {path_name(path) for path, update in leaves if update is None}
    diff = tree_diff(_expected_updates(case.grads, case.params), run.updates, values=False)
    if diff := TreeDiff(
        d for d in without(diff, "weak type", "sharding") if not (d.kind == "array against None" and d.path in frozen)
    ):
        yield Violation(
            "updates have the structure of the gradients (or None), and the wider of gradient's and param's dtype",
            found=f"(expected | updates)\n{diff}",
            effect="apply_updates fails or changes the dtypes of the params, and cond rejects the updates",
            fix=PRESERVE,
        )


def _expected_updates(grads: Updates, params: Params) -> Any:
    def expected(grad: object, param: object) -> Any:
        if has_no_update(grad):
            return None
        return untyped.ShapeDtypeStruct(
            jnp.shape(grad), promoted_dtype(grad, param) if is_parameter(param) else dtype_of(grad)
        )

    return jtu.tree_map(expected, grads, params, is_leaf=is_none)


def is_traced_once(case: Case, run: Run) -> Iterator[Violation]:
    """Law: the first steps use one compiled program. Other laws trace again, so they come after this one."""
    if case.traces > 1:
        yield Violation(
            f"update is traced once in {STEPS} steps",
            found=f"it was traced {case.traces} times",
            effect="jit silently compiles again",
            fix=PRESERVE,
        )


def stays_finite(case: Case, run: Run) -> Iterator[Violation]:
    """Law: finite gradients give no NaN."""
    if not all_finite((case.params, case.grads)):
        return
    if bad := nan_paths(run.last) | {f"updates.{path}" for path in nan_paths(run.updates)}:
        yield Violation(
            "finite gradients give no NaN",
            found=f"NaN after {STEPS} steps at {listed(bad)}",
            effect="the params become NaN",
            fix="keep hyperparameters in f32, as treekit.optax.inject_hyperparams does (b2=0.999 is 1 in bf16), and "
            f"the state too: {KEEP_WIDE}",
        )


def runs_in_scan(case: Case, run: Run) -> Iterator[Violation]:
    """Law: update runs in scan, and a NaN gradient that is removed from the updates leaves no NaN in the state."""
    if not run.keeps_types():
        return  # the laws of the state report it
    try:
        clean, poisoned = _scan(case, run)
    except Exception as error:
        yield Violation(
            "update runs in scan",
            found=describe_error(error),
            effect="training loops that are compiled as a whole cannot use it",
            fix=f"store everything in the state; {_PURE}",
        )
        return
    hidden = bool(clean.finite) and bool(poisoned.finite)
    left = nan_paths(poisoned.state) - nan_paths(clean.state)
    if hidden and left:
        yield Violation(
            "a NaN gradient that is removed from the updates leaves no NaN in the state",
            found=f"after {_AFTER} finite gradients there is NaN at {listed(left)}, though no update was NaN",
            effect="these params silently stop training",
            fix="accumulate with treekit.optax.MultiSteps; put treekit.optax.apply_if_finite around it",
        )


class _Scanned(NamedTuple):
    state: Any
    finite: Any  # whether all updates were finite


def _scan(case: Case, run: Run) -> tuple[_Scanned, _Scanned]:
    """Run steps with finite gradients, and the same steps with NaN gradients in the second."""

    def step(carry: tuple[Any, Any], is_nan: object) -> tuple[Any, None]:
        state, finite = carry
        arrays = case.arrays_with_grads(lambda g: jnp.where(is_nan, jnp.full_like(g, jnp.nan), g))
        updates, state = case.update(arrays, state)
        return (state, finite & all_finite(updates)), None

    def scan(state: OptState, is_nan: object) -> Any:
        return lax.scan(step, (state, jnp.array(True)), is_nan)[0]

    never = jnp.zeros(_AFTER + 2, bool)
    jitted = untyped.jit(scan)
    with jax.debug_nans(False):  # this NaN is intended
        clean, poisoned = (_Scanned(*jitted(run.second, is_nan)) for is_nan in (never, never.at[1].set(True)))
    return clean, poisoned


def runs_under_vmap(case: Case, run: Run) -> Iterator[Violation]:
    """Law: under vmap, two members take the same steps as each does alone."""
    if not run.keeps_types() or not jtu.tree_leaves((case.arrays, run.state)):
        return
    halves = case.arrays_with_grads(lambda g: g * jnp.asarray(0.5, g.dtype))
    members = [(case.arrays, run.second), (halves, jtu.tree_map(jnp.asarray, run.state))]
    try:
        alone = [case.jitted(*member) for member in members]
        together = untyped.jit(untyped.vmap(case.update))(*jtu.tree_map(lambda *xs: jnp.stack(xs), *members))
        leaves, treedef = jtu.tree_flatten(together)
        apart = [treedef.unflatten([x[i] for x in leaves]) for i in range(len(members))]
        diffs = [_difference(a, b) for a, b in zip(alone, apart, strict=True)]
        found = "\n".join(f"member {i} (alone | under vmap)\n{diff}" for i, diff in enumerate(diffs) if diff)
    except Exception as error:
        found = describe_error(error)
    if found:
        yield Violation(
            "under vmap each member takes the step that it takes alone",
            found,
            effect="ensembles and sweeps of hyperparameters fail, or their members disturb each other",
            fix=f"{_PURE}; decide for each member separately",
        )


def _difference(a: object, b: object) -> str:
    """Describe where two results differ by more than rounding."""
    # Stacking changes weak types to strong ones.
    if diff := without(tree_diff(a, b, values=False), "weak type", "sharding"):
        return str(diff)
    right = by_path(b)
    return listed(path or "(root)" for path, x in by_path(a).items() if not _close(x, right[path]))


def _close(x: Any, y: Any) -> bool:
    if not is_inexact_array(x):
        return not without(tree_diff(x, y), "weak type", "sharding")
    bound = _MEMBERS_DIFFER * jnp.max(jnp.abs(x), initial=0)
    return bool(((jnp.abs(x - y) <= bound) | (x == y) | (jnp.isnan(x) & jnp.isnan(y))).all())


# Traces are counted before other laws trace again.
LAWS: dict[str, Callable[[Case, Run], Iterator[Violation]]] = {
    "structure": keeps_structure,
    "dtype": keeps_dtypes,
    "weak type": keeps_weak_types,
    "updates": gives_updates_like_the_gradients,
    "traces": is_traced_once,
    "finite": stays_finite,
    "jitted init": can_be_made_under_jit,
    "scan": runs_in_scan,
    "vmap": runs_under_vmap,
    "donation": can_be_donated,
    "checkpoint": can_be_pickled,
    "moment": narrow_state_decays,
}
