"""The laws of a gradient transformation: one function each, that yields what breaks it."""

import pickle
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax

from treekit._describe import describe_error
from treekit._diff import TreeDiff, tree_diff
from treekit._dtype import dtype_of, is_absent, wider
from treekit._filter import is_array, is_inexact_array, is_parameter
from treekit._jax import jnp, jtu, lax, untyped
from treekit._round import is_narrow, widen
from treekit.check._laws import Broken

_FILTER = "treekit.optax.filtered(tx)"
_PRESERVE = "treekit.optax.dtype_preserving(tx)"
_HOLD_WIDE = f"{_PRESERVE[:-1]}, state_dtype=jnp.float32)"
_ROUND = f'{_PRESERVE[:-1]}, rounding="stochastic")'
_WRITE = "write update as a function of its arguments alone, in jax.numpy and jax.lax"

_STEPS = 4  # that are traced once
_AFTER = 40  # steps in which a NaN has to be gone from the state, so more than the rounds of a gradient accumulator
_SMALL = 2.0**-7  # of a gradient beside a large one; a power of two, so that it is exact
_WORK = 20_000_000  # elements that the law of the moment may step over
_MEMBERS_DIFFER = 0.1  # of the largest value: two compilations differ by rounding, two computations by more


class _Case:
    """A transformation and what it is given; arrays apart from the rest, so that they can be traced."""

    def __init__(self, tx: Any, params: Any, grads: Any, extra: dict[str, Any]) -> None:
        self.tx, self.params, self.grads, self.extra = tx, params, grads, extra
        leaves, self._treedef = jtu.tree_flatten((params, grads))
        self._arrays = [_is_dynamic(x) for x in leaves]
        self._leaves = leaves
        self.arrays = [x for x in leaves if _is_dynamic(x)]
        self.traces = 0
        self.jitted = untyped.jit(self.update)

    def update(self, arrays: list[Any], state: Any) -> tuple[Any, Any]:
        """Updates and state, from the arrays among params and gradients."""
        self.traces += 1
        params, grads = self.whole(arrays)
        out: tuple[Any, Any] = self.tx.update(grads, state, params, **self.extra)
        return out

    def whole(self, arrays: list[Any]) -> tuple[Any, Any]:
        """Params and gradients with these arrays."""
        left = iter(arrays)
        pairs = zip(self._leaves, self._arrays, strict=True)
        out: tuple[Any, Any] = self._treedef.unflatten([next(left) if dynamic else x for x, dynamic in pairs])
        return out

    def with_grads(self, arrays: list[Any], f: Callable[[Any], Any]) -> list[Any]:
        """The arrays, those inexact ones that are gradients changed."""
        params, _ = self.whole(arrays)
        count = sum(map(_is_dynamic, jtu.tree_leaves(params)))
        return [f(x) if i >= count and is_inexact_array(x) else x for i, x in enumerate(arrays)]


class _Run(NamedTuple):
    """What became of a few steps: the state at first, after one step, and at last; and the last updates."""

    state: Any
    second: Any
    last: Any
    updates: Any


def transformation_laws(
    tx: Any,
    params: Any,
    grads: Any,
    extra: dict[str, Any],
    laws: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Broken]:
    """What a transformation breaks of the laws; of those of `LAWS` named in `laws` alone, if it is given.

    That init and update run comes first, and the others only where it holds. `progress` is told what begins.
    """
    progress("init and update")
    grads = jtu.tree_map(_one_or_none, params) if grads is None else grads
    try:
        given = jtu.tree_map(_same, params)
        state = tx.init(given)
    except Exception as error:  # the user's code may raise anything
        yield Broken(
            "init takes the params",
            found=describe_error(error),
            cause="the optimizer cannot be used on these params",
            remedy=f"{_FILTER}, which shows it inexact arrays alone",
        )
        return
    if diff := tree_diff(params, given):
        yield Broken(
            "init leaves the params as they are",
            found=f"(params | after init)\n{diff}",
            cause="the model is changed behind its back, and update gets other params than it was made for",
            remedy="let init return what it adds, as state",
        )
    case = _Case(tx, params, grads, extra)
    try:
        updates, second = case.jitted(case.arrays, state)
        last = second
        for _ in range(_STEPS - 1):
            updates, last = case.jitted(case.arrays, last)
    except Exception as error:
        yield Broken(
            "update takes the gradients and its own state, under jit",
            found=describe_error(error),
            cause="the optimizer cannot be used with these gradients",
            remedy=f"{_FILTER}, or {_PRESERVE} where the error is one of dtypes; else {_WRITE}",
        )
        return
    run = _Run(state, second, last, updates)
    for name, law in LAWS.items():
        if laws is None or name in laws:
            progress(name)
            yield from law(case, run)


def _keeps_structure(case: _Case, run: _Run) -> Iterator[Broken]:
    yield from _keeps_state(
        run, "structure and shapes", ("type", "structure", "static value", "array against None", "shape")
    )


def _keeps_dtypes(case: _Case, run: _Run) -> Iterator[Broken]:
    yield from _keeps_state(run, "dtypes", ("dtype",))


def _keeps_weak_types(case: _Case, run: _Run) -> Iterator[Broken]:
    yield from _keeps_state(run, "weak types", ("weak type",))


def _keeps_state(run: _Run, what: str, kinds: tuple[str, ...]) -> Iterator[Broken]:
    diff = TreeDiff(d for d in tree_diff(run.state, run.last, values=False) if d.kind in kinds)
    if diff:
        yield Broken(
            f"update keeps the {what} of the state",
            found=f"(init | update)\n{diff}",
            cause="scan and cond reject it, jit compiles again, memory may grow",
            remedy=_PRESERVE if "structure" not in kinds else "return from update what init returns, with other values",
        )


def _gives_updates(case: _Case, run: _Run) -> Iterator[Broken]:
    wanted = _wanted_updates(case.grads, case.params)
    diff = tree_diff(wanted, jtu.tree_map(_abstract, run.updates), values=False)
    if diff:
        yield Broken(
            "updates have the structure of the gradients, and the wider of the gradient's and the param's dtype",
            found=f"(wanted | updates)\n{diff}",
            cause="apply_updates fails or changes the dtypes of params, cond rejects the updates",
            remedy=_PRESERVE,
        )


def _is_traced_once(case: _Case, run: _Run) -> Iterator[Broken]:
    traces = case.traces  # of the first steps: this law comes before those that trace again
    if traces > 1:
        yield Broken(
            f"update is traced once in {_STEPS} steps",
            found=f"{traces} traces",
            cause="jit compiles again, silently",
            remedy=_PRESERVE,
        )


def _inits_under_jit(case: _Case, run: _Run) -> Iterator[Broken]:
    leaves, treedef = jtu.tree_flatten(case.params)
    arrays = [x for x in leaves if _is_dynamic(x)]

    def init(arrays: list[Any]) -> Any:
        left = iter(arrays)
        return case.tx.init(treedef.unflatten([next(left) if _is_dynamic(x) else x for x in leaves]))

    try:
        diff = tree_diff(run.state, untyped.eval_shape(init, arrays), values=False)
        found = f"(init | init under jit)\n{diff}" if diff else ""
    except Exception as error:
        found = describe_error(error)
    if found:
        yield Broken(
            "init can be jitted, and gives the same state",
            found,
            cause="state cannot be made where it is to lie, sharded; eval_shape cannot tell its size",
            remedy="let init go by shapes and dtypes of the params alone, in jax.numpy; " + _PRESERVE,
        )


def _runs_in_scan(case: _Case, run: _Run) -> Iterator[Broken]:
    if not _same_types(run):
        return  # which the laws of the state have said
    try:
        clean, poisoned = _scan(case, run)
    except Exception as error:
        yield Broken(
            "update runs in scan",
            found=describe_error(error),
            cause="training loops that are compiled as a whole cannot use it",
            remedy=f"keep nothing outside of the state; {_WRITE}",
        )
        return
    hidden = bool(clean.finite) and bool(poisoned.finite)
    left = _nan_paths(poisoned.state) - _nan_paths(clean.state)
    if hidden and left:
        yield Broken(
            "a NaN gradient that the updates do not show leaves no NaN in the state",
            found=f"{_AFTER} finite gradients later, NaN at {_listed(left)}; no update was NaN",
            cause="these parameters never train again, and nothing tells",
            remedy="treekit.optax.MultiSteps to accumulate; treekit.optax.apply_if_finite outside of what keeps state",
        )


class _Scanned(NamedTuple):
    state: Any
    finite: Any  # were all updates?


def _scan(case: _Case, run: _Run) -> tuple[_Scanned, _Scanned]:
    """Steps with finite gradients; and the same, the gradients of the second being NaN."""

    def step(carry: Any, is_nan: Any) -> tuple[Any, None]:
        state, finite = carry
        arrays = case.with_grads(case.arrays, lambda g: jnp.where(is_nan, jnp.full_like(g, jnp.nan), g))
        updates, state = case.update(arrays, state)
        return (state, finite & _all_finite(updates)), None

    def scan(state: Any, is_nan: Any) -> Any:
        return lax.scan(step, (state, jnp.array(True)), is_nan)[0]

    never = jnp.zeros(_AFTER + 2, bool)
    jitted = untyped.jit(scan)
    with jax.debug_nans(False):  # this NaN is meant
        clean, poisoned = (_Scanned(*jitted(run.second, is_nan)) for is_nan in (never, never.at[1].set(True)))
    return clean, poisoned


def _stays_finite(case: _Case, run: _Run) -> Iterator[Broken]:
    if not _all_finite((case.params, case.grads)):
        return
    bad = _nan_paths(run.last) | {f"updates{path}" for path in _nan_paths(run.updates)}
    if bad:
        yield Broken(
            "finite gradients give no NaN",
            found=f"NaN after {_STEPS} steps at {_listed(bad)}",
            cause="training is over",
            remedy="hold hyperparameters in f32 (treekit.optax.inject_hyperparams does: in bf16 b2=0.999 is 1), and "
            f"state too: {_HOLD_WIDE}",
        )


def _runs_under_vmap(case: _Case, run: _Run) -> Iterator[Broken]:
    if not _same_types(run) or not jtu.tree_leaves((case.arrays, run.state)):
        return
    halves = case.with_grads(case.arrays, lambda g: g * jnp.asarray(0.5, g.dtype))
    members = [(case.arrays, run.second), (halves, jtu.tree_map(jnp.asarray, run.state))]
    try:
        alone = [case.jitted(*member) for member in members]
        together = untyped.jit(untyped.vmap(case.update))(*jtu.tree_map(lambda *xs: jnp.stack(xs), *members))
        leaves, treedef = jtu.tree_flatten(together)
        apart = [treedef.unflatten([x[i] for x in leaves]) for i in range(len(members))]
        diffs = [_differ(a, b) for a, b in zip(alone, apart, strict=True)]
        found = "\n".join(f"member {i} (alone | under vmap)\n{diff}" for i, diff in enumerate(diffs) if diff)
    except Exception as error:
        found = describe_error(error)
    if found:
        yield Broken(
            "under vmap each member takes the step that it takes alone",
            found,
            cause="ensembles and sweeps of hyperparameters fail, or disturb each other",
            remedy=f"{_WRITE}; let nothing be decided for all members at once",
        )


def _can_be_donated(case: _Case, run: _Run) -> Iterator[Broken]:
    params = _buffers(case.params)
    for what, state in (("init", run.state), ("update", run.second)):
        held: dict[int, str] = {}
        shared: list[str] = []
        for path, buffer in _buffers(state).items():
            others = [f"params{p}" for p, b in params.items() if b == buffer] + [held[b] for b in held if b == buffer]
            shared += [f"state{path} is {other}" for other in others]
            held[buffer] = f"state{path}"
        if shared:
            yield Broken(
                f"the state that {what} gives shares no buffer with the params, and none within itself",
                found=_listed(shared),
                cause="a step that donates params and state fails: one buffer is donated twice",
                remedy="let init make each array anew, and copy what it keeps of the params, by jnp.array(x)",
            )
            return


def _can_be_saved(case: _Case, run: _Run) -> Iterator[Broken]:
    try:
        diff = tree_diff(run.second, pickle.loads(pickle.dumps(run.second)))
        found = f"(saved | loaded)\n{diff}" if diff else ""
    except Exception as error:
        found = describe_error(error)
    if found:
        yield Broken(
            "the state can be pickled and comes back the same",
            found,
            cause="training cannot be stopped and resumed",
            remedy="make the state of arrays in NamedTuples and nodes of classes that a module defines by name",
        )


def _moments_decay(case: _Case, run: _Run) -> Iterator[Broken]:
    narrow = {path for path, x in _with_paths(run.state).items() if is_narrow(x)}
    if not (narrow and _same_types(run)):
        return
    try:
        falls = _falls(case, run.state, lambda state: state)
        wide = _Case(case.tx, widen(case.params), widen(case.grads), widen(case.extra))
        wide_falls = _falls(wide, widen(run.state), widen)
    except Exception:  # what it does in f32 cannot be told, and so not what it fails to do in 16 bits
        return
    stuck = [
        f"state{path} fell by {falls[path]:.1%}, in f32 by {wide_falls[path]:.1%}"
        for path in narrow
        if wide_falls[path] > 0.03 and falls[path] < 0.25 * wide_falls[path]
    ]
    if stuck:
        yield Broken(
            "state of less than 32 bits falls when the gradients do",
            found=f"after {_STEPS} large gradients and then small ones: {_listed(stuck)}",
            cause="rounded to nearest, a moment that has once been large never decays, and steps stay small for ever",
            remedy=f"{_HOLD_WIDE}; or {_ROUND}, which takes no more memory",
        )


def _falls(case: _Case, state: Any, cast: Callable[[Any], Any]) -> dict[str, float]:
    """By which part each floating leaf of the state falls in many steps with small gradients, after large ones."""
    small = max(64, min(1000, _WORK // max(1, sum(x.size for x in case.arrays))))

    def step(state: Any, scale: Any) -> tuple[Any, None]:
        arrays = case.with_grads(case.arrays, lambda g: g * scale.astype(g.dtype))
        return cast(case.update(arrays, state)[1]), None

    def size(x: Any) -> float:
        return float(jnp.abs(x.astype(jnp.float32)).sum())

    def scan(state: Any, scales: Any) -> Any:
        return lax.scan(step, state, scales)[0]

    jitted = untyped.jit(scan)
    peak = jitted(state, jnp.ones(_STEPS))
    last = _with_paths(jitted(peak, jnp.full(small, _SMALL)))
    pairs = {path: (size(x), size(last[path])) for path, x in _with_paths(peak).items() if is_inexact_array(x)}
    return {path: 1 - after / before if before > 0 else 0.0 for path, (before, after) in pairs.items()}


# In this order: tracing is counted before other laws trace again.
LAWS: dict[str, Callable[[_Case, _Run], Iterator[Broken]]] = {
    "structure": _keeps_structure,
    "dtype": _keeps_dtypes,
    "weak type": _keeps_weak_types,
    "updates": _gives_updates,
    "traces": _is_traced_once,
    "finite": _stays_finite,
    "jitted init": _inits_under_jit,
    "scan": _runs_in_scan,
    "vmap": _runs_under_vmap,
    "donation": _can_be_donated,
    "checkpoint": _can_be_saved,
    "moment": _moments_decay,
}


def _same_types(run: _Run) -> bool:
    return all(d.kind == "sharding" for d in tree_diff(run.state, run.last, values=False))


def _wanted_updates(grads: Any, params: Any) -> Any:
    def wanted(grad: Any, param: Any) -> Any:
        if is_absent(grad):
            return None
        return untyped.ShapeDtypeStruct(jnp.shape(grad), wider(grad, param) if is_parameter(param) else dtype_of(grad))

    return jtu.tree_map(wanted, grads, params, is_leaf=lambda x: x is None)


def _same(x: Any) -> Any:
    return x


def _one_or_none(x: Any) -> Any:
    return jnp.ones_like(x) if is_inexact_array(x) else None


def _abstract(x: Any) -> Any:
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _is_dynamic(x: Any) -> bool:
    """Whether jit takes it for an argument."""
    return is_array(x) and dtype_of(x) is not None and dtype_of(x) != jax.dtypes.float0


def _with_paths(tree: Any) -> dict[str, Any]:
    return {jtu.keystr(path): x for path, x in jtu.tree_flatten_with_path(tree)[0]}


def _all_finite(tree: Any) -> Any:
    return jnp.stack([jnp.isfinite(x).all() for x in jtu.tree_leaves(tree) if is_inexact_array(x)] or [True]).all()


def _nan_paths(tree: Any) -> set[str]:
    return {path for path, x in _with_paths(tree).items() if is_inexact_array(x) and bool(jnp.isnan(x).any())}


def _differ(a: Any, b: Any) -> str:
    """Where two results are not the same computation, in words."""
    if diff := _unlike(tree_diff(a, b, values=False)):
        return str(diff)
    right = _with_paths(b)
    return _listed(path or "(root)" for path, x in _with_paths(a).items() if not _close(x, right[path]))


def _unlike(diff: TreeDiff) -> TreeDiff:
    """Without what differs by having been stacked."""
    return TreeDiff(d for d in diff if d.kind not in ("weak type", "sharding"))


def _close(x: Any, y: Any) -> bool:
    if not is_inexact_array(x):
        return not _unlike(tree_diff(x, y))
    bound = _MEMBERS_DIFFER * jnp.max(jnp.abs(x), initial=0)
    return bool(((jnp.abs(x - y) <= bound) | (x == y) | (jnp.isnan(x) & jnp.isnan(y))).all())


def _buffers(tree: Any) -> dict[str, int]:
    """The address of each JAX array of a tree on this host that has elements; if it is sharded, of its first shard."""
    found: dict[str, int] = {}
    for path, x in _with_paths(tree).items():
        if isinstance(x, jax.Array) and _is_dynamic(x) and x.size and x.is_fully_addressable:
            data: Any = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            found[path] = data.addressable_shards[0].data.unsafe_buffer_pointer()
    return found


def _listed(what: Collection[str] | Iterator[str]) -> str:
    """A few of them, and how many others."""
    names = sorted(what)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} others" if len(names) > 6 else "")
