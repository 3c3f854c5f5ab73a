"""The laws of update: what it returns, and that it runs under every JAX transform."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.describe import describe_error
from treekit._base.dtype import dtype_of, has_no_update, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_inexact_array, is_parameter
from treekit._base.tree import is_none
from treekit._base.types import OptState, Params, Updates
from treekit._diff.diff import tree_diff
from treekit.check._case import STEPS, Case, Run, all_finite, by_path, listed, nan_paths, without
from treekit.check._laws import FILTER, KEEP_WIDE, PRESERVE, Violation

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
    """Law: updates have the structure of the gradients, and the wider dtype of gradient and param."""
    expected = _expected_updates(case.grads, case.params)
    if diff := without(tree_diff(expected, run.updates, values=False), "weak type", "sharding"):
        yield Violation(
            "updates have the structure of the gradients, and the wider of the gradient's and the param's dtype",
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
