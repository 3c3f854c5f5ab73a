"""The laws of a gradient transformation: its state, its updates, and that it runs under every transform of JAX.

`LAWS`, at the end, says what each of them demands. The functions before it describe what was found instead, or return
"" if the law holds.
"""

import functools
import pickle
from collections.abc import Callable
from typing import Any

from treekit._arrays.round import widen
from treekit._base.dtype import dtype_of, has_no_update, issubdtype, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_inexact_array, is_narrow, is_parameter
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, Updates
from treekit._compare.diff import tree_diff
from treekit._compare.differences import STRUCTURE, Difference, TreeDiff
from treekit._names.key_path import flatten_with_names
from treekit._text.describe import describe_error
from treekit._text.lists import listed
from treekit.testing._case import AFTER, STEPS, Case, Run
from treekit.testing._trees import all_finite, by_path, is_jit_argument, nan_paths, shared_buffers, split, without
from treekit.testing._violations import KEEP_WIDE, WRAP, Law, Violation

_SMALL = 2.0**-7  # a gradient that is small compared with 1; a power of two, so exact
_WORK = 20_000_000  # how many elements the law of narrow state may update
_MEMBERS_DIFFER = 0.1  # as a fraction of the largest value, which is more than two compilations differ by rounding
_DECAYS = 0.03  # by which a moment must fall in f32, so that in fewer bits it is expected to fall too,
_ENOUGH = 0.25  # by this share of that
_PURE = "write update as a function of its arguments only, with jax.numpy and jax.lax"
_REJECTED = "scan and cond reject it, jit compiles again, and memory may grow"


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
        fix=f"{WRAP} if the error is about dtypes, or about leaves that are not to be trained; else {_PURE}",
    )


def _changes(kinds: tuple[str, ...], case: Case, run: Run) -> str:
    """Describe how the state differs in these respects after a few steps."""
    diff = TreeDiff(d for d in tree_diff(run.state, run.last, values=False) if d.kind in kinds)
    return f"(init | update)\n{diff}" if diff else ""


def _other_updates(case: Case, run: Run) -> str:
    """Describe updates that have not the structure and the shapes of the gradients, or are not floats.

    An update may be None where there is a gradient: for a field that its class declares not to be trained.
    """
    frozen = {name for name, update in flatten_with_names(run.updates, is_none) if update is None}
    expected = _expected_updates(case.grads, case.params)
    wanted, updates = by_path(expected), by_path(run.updates)

    def is_right(d: Difference) -> bool:
        if d.kind == "dtype":  # any float, and a complex number for a complex param, which `expected` has
            is_complex = issubdtype(dtype_of(wanted[d.path]), jnp.complexfloating)
            return issubdtype(dtype_of(updates[d.path]), jnp.inexact if is_complex else jnp.floating)
        return d.kind == "array against None" and d.path in frozen

    diff = without(tree_diff(expected, run.updates, values=False), "weak type", "sharding")
    diff = TreeDiff(d for d in diff if not is_right(d))
    return f"(expected | updates)\n{diff}" if diff else ""


def _expected_updates(grads: Updates, params: Params) -> Any:
    def expected(grad: object, param: object) -> Any:
        if has_no_update(grad):
            return None
        return untyped.ShapeDtypeStruct(
            jnp.shape(grad), promoted_dtype(grad, param) if is_parameter(param) else dtype_of(grad)
        )

    return jtu.tree_map(expected, grads, params, is_leaf=is_none)


def _retraced(case: Case, run: Run) -> str:
    return f"it was traced {case.traces} times" if case.traces > 1 else ""


def _nan_after_finite_gradients(case: Case, run: Run) -> str:
    if not all_finite((case.params, case.grads)):
        return ""
    bad = nan_paths(run.last) | {f"updates.{path}" for path in nan_paths(run.updates)}
    return f"NaN after {STEPS} steps at {listed(sorted(bad))}" if bad else ""


def _jitted_init(case: Case, run: Run) -> str:
    arrays, params_with = split(case.params)

    def init(arrays: list[Any]) -> Any:
        return case.tx.init(params_with(arrays))

    diff = tree_diff(run.state, untyped.eval_shape(init, arrays), values=False)
    return f"(init | init under jit)\n{diff}" if diff else ""


def _in_scan(case: Case, run: Run) -> str:
    if run.keeps_types():  # the laws of the state report it
        case.scan(run.second, False)
    return ""


def _nan_left_in_state(case: Case, run: Run) -> str:
    """Describe a NaN that is in the state after a NaN gradient, although no update was NaN."""
    if not run.keeps_types():
        return ""
    try:
        clean, poisoned = case.scan(run.second, False), case.scan(run.second, True)
    except Exception:  # the law before this one reports it
        return ""
    left = nan_paths(poisoned.state) - nan_paths(clean.state)
    if not (left and bool(clean.finite) and bool(poisoned.finite)):
        return ""
    return f"after {AFTER} finite gradients there is NaN at {listed(sorted(left))}, though no update was NaN"


def _members_apart(case: Case, run: Run) -> str:
    """Describe how two members under vmap take other steps than each does alone."""
    if not run.keeps_types() or not jtu.tree_leaves((case.arrays, run.state)):
        return ""
    halves = case.arrays_with_grads(lambda g: g * jnp.asarray(0.5, g.dtype))
    # Gradients and states of the two differ, so that a decision that is made for both shows.
    members = [(case.arrays, run.second), (halves, jtu.tree_map(jnp.asarray, run.state))]
    alone = [case.jitted(*member) for member in members]
    together = untyped.jit(untyped.vmap(case.update))(*jtu.tree_map(lambda *xs: jnp.stack(xs), *members))
    leaves, treedef = jtu.tree_flatten(together)
    apart = [treedef.unflatten([x[i] for x in leaves]) for i in range(len(members))]
    diffs = [_difference(a, b) for a, b in zip(alone, apart, strict=True)]
    return "\n".join(f"member {i} (alone | under vmap)\n{diff}" for i, diff in enumerate(diffs) if diff)


def _difference(a: object, b: object) -> str:
    """Describe where two results differ by more than rounding."""
    # Stacking changes weak types to strong ones.
    if diff := without(tree_diff(a, b, values=False), "weak type", "sharding"):
        return str(diff)
    right = by_path(b)
    return listed(sorted(path for path, x in by_path(a).items() if not _close(x, right[path])))


def _close(x: Any, y: Any) -> bool:
    if not is_inexact_array(x):
        return not without(tree_diff(x, y), "weak type", "sharding")
    bound = _MEMBERS_DIFFER * jnp.max(jnp.abs(x), initial=0)
    return bool(((jnp.abs(x - y) <= bound) | (x == y) | (jnp.isnan(x) & jnp.isnan(y))).all())


def _shared_buffers(case: Case, run: Run) -> str:
    for function, state in (("init", run.state), ("update", run.second)):
        shared = shared_buffers({"params": case.params, "state": state})
        pairs = [f"{other} is {first}" for first, others in shared.items() for other in others]
        if of_state := [pair for pair in pairs if pair.startswith("state")]:
            return f"after {function}, {listed(sorted(of_state))}"
    return ""


def _not_pickled(case: Case, run: Run) -> str:
    try:
        diff = tree_diff(run.second, pickle.loads(pickle.dumps(run.second)))
    except Exception:
        if not _can_pickle_structure(case.params):
            return ""  # the state contains static values of the params, so this is not the optimizer's fault
        raise
    return f"(saved | loaded)\n{diff}" if any(each.kind != "sharding" for each in diff) else ""


def _can_pickle_structure(params: Params) -> bool:
    """Whether nodes and static values can be pickled; functions among the leaves are not in the state."""
    leaves, treedef = jtu.tree_flatten(params)
    try:
        pickle.dumps(treedef.unflatten([x if is_jit_argument(x) else None for x in leaves]))
    except Exception:
        return False
    return True


def _stuck_state(case: Case, run: Run) -> str:
    """Describe floats of less than 32 bits that decay much less than they do in f32."""
    narrow = {path for path, x in by_path(run.state).items() if is_narrow(x)}
    if not (narrow and run.keeps_types()):
        return ""
    try:
        decay = _decay(case, run.state, lambda state: state)
        wide = Case(case.tx, widen(case.params), widen(case.grads), widen(case.extra))
        wide_decay = _decay(wide, widen(run.state), widen)
    except Exception:  # it fails in f32, so nothing can be compared
        return ""
    stuck = [
        f"state.{path} fell by {decay[path]:.1%}, in f32 by {wide_decay[path]:.1%}"
        for path in narrow
        if wide_decay[path] > _DECAYS and decay[path] < _ENOUGH * wide_decay[path]
    ]
    return f"with {STEPS} large gradients and then small ones, {listed(sorted(stuck))}" if stuck else ""


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


# Traces are counted before other laws trace again.
LAWS: dict[str, Law] = {
    "structure": Law(
        "update keeps the structure and shapes of the state",
        _REJECTED,
        "return from update what init returns, with other values",
        functools.partial(_changes, STRUCTURE),
    ),
    "dtype": Law("update keeps the dtypes of the state", _REJECTED, WRAP, functools.partial(_changes, ("dtype",))),
    "weak type": Law(
        "update keeps the weak types of the state", _REJECTED, WRAP, functools.partial(_changes, ("weak type",))
    ),
    "updates": Law(
        "updates have the structure and shapes of the gradients (or None), and are real or complex as the params are",
        "apply_updates fails, or loses the imaginary part",
        WRAP,
        _other_updates,
    ),
    "traces": Law(f"update is traced once in {STEPS} steps", "jit silently compiles again", WRAP, _retraced),
    "finite": Law(
        "finite gradients give no NaN",
        "the params become NaN",
        "keep hyperparameters in f32, as treekit.optax.inject_hyperparams does (b2=0.999 is 1 in bf16), and "
        f"the state too: {KEEP_WIDE}",
        _nan_after_finite_gradients,
    ),
    "jitted init": Law(
        "init can be jitted, and gives the same state",
        "the state cannot be created with a sharding, and eval_shape cannot compute its size",
        "let init depend only on the shapes and dtypes of the params, and use jax.numpy; " + WRAP,
        _jitted_init,
    ),
    "scan": Law(
        "update runs in scan",
        "training loops that are compiled as a whole cannot use it",
        f"store everything in the state; {_PURE}",
        _in_scan,
    ),
    "NaN": Law(
        "a NaN gradient that is removed from the updates leaves no NaN in the state",
        "these params silently stop training",
        "accumulate with treekit.optax.MultiSteps; put treekit.optax.apply_if_finite around it",
        _nan_left_in_state,
    ),
    "vmap": Law(
        "under vmap each member takes the step that it takes alone",
        "ensembles and sweeps of hyperparameters fail, or their members disturb each other",
        f"{_PURE}; decide for each member separately",
        _members_apart,
    ),
    "donation": Law(
        "the state shares no buffer with the params, and none within itself",
        "a step that donates both params and state fails, since one buffer is donated twice",
        "copy the state once, with jax.tree.map(jnp.copy, state), or let init and update copy what they store",
        _shared_buffers,
    ),
    "checkpoint": Law(
        "the state can be pickled and comes back the same",
        "training cannot be stopped and resumed",
        "let the state consist of arrays in NamedTuples, or in nodes whose classes are defined in a module",
        _not_pickled,
    ),
    "moment": Law(
        "state of less than 32 bits falls when the gradients do",
        "a moment that was large once is rounded back to itself at each step, so steps stay small",
        f'{KEEP_WIDE}; or treekit.training.store_state(tx, rounding="stochastic"), which needs no more memory',
        _stuck_state,
    ),
}
