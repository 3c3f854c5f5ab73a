"""MultiSteps, apply_if_finite and the conditional wrappers: a step that holds changes nothing; no NaN outlives it."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treekit as tk
from tests.optax import cases
from tests.releases import enable_x64
from treekit import optax as tko
from treekit import training

NAN, INF = float("nan"), float("inf")


def stream(n: int, dtype: Any = jnp.float32) -> list[dict[str, jax.Array]]:
    """Gradients of `n` micro-steps."""
    rng = np.random.default_rng(0)
    return [{k: jnp.asarray(rng.normal(size=x.shape), dtype) for k, x in cases.arrays().items()} for _ in range(n)]


def run(ms: Any, grads: list[Any], params: Any) -> tuple[Any, Any, list[Any]]:
    """Params and state at the end, and the updates of every step; jitted, and each state is donated to the next."""
    state, seen = ms.init(params), []
    step = jax.jit(ms.update, donate_argnums=1)
    for g in grads:
        updates, state = step(g, state, params)
        params = tko.apply_updates(params, updates)
        seen.append(updates)
    return params, state, seen


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "multi_steps": lambda tx: tko.MultiSteps(tx, 2),
    "sum": lambda tx: tko.MultiSteps(tx, 2, use_grad_mean=False, accumulator_dtype=None),
    "of_masked": lambda tx: tko.MultiSteps(tko.masked(tx, True), lambda step: 1 + step),
    "masked": lambda tx: tko.masked(tko.MultiSteps(tx, 3), True),
    "partition": lambda tx: tko.partition({"a": tko.MultiSteps(tx, 3)}, "a"),
    "of_finite": lambda tx: tko.MultiSteps(tko.apply_if_finite(tx, 2), 2),
    "finite_of_multi_steps": lambda tx: tko.apply_if_finite(tko.MultiSteps(tx, 2), 2),
    "injected": lambda tx: tko.inject_hyperparams(
        lambda scale: optax.chain(tko.MultiSteps(tx, 2).gradient_transformation(), optax.scale(scale))
    )(0.5),
    "finite": lambda tx: tko.apply_if_finite(tx, 3),
    "finite_of_masked": lambda tx: tko.apply_if_finite(tko.masked(tx, cases.mask_of), 3),
}


@pytest.mark.table
@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 2, whole=("multi_steps", "finite"), every=6))
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    # Optax's own lbfgs writes f32 gradients into a bf16 memory, which JAX announces to refuse.
    cases.check_laws(wrap(cases.OPTIMIZERS[name](tko if name.startswith("lbfgs") else optax)), kind)


# ------------------------------------------------------------------------------------------------- what holds, holds


def test_a_step_that_holds_runs_nothing_and_returns_exact_zeros() -> None:
    """The state of the inner transformation, a count and a key, is chosen, not averaged."""
    counts: list[int] = []

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        jax.debug.callback(lambda: counts.append(1))  # from within the compiled program
        return jax.tree.map(jnp.negative, updates), state + 1

    counting = optax.GradientTransformation(lambda params: jnp.zeros([], jnp.int32), update)
    ms, params = tko.MultiSteps(optax.chain(counting, optax.add_noise(0.1, 0.5, 0)), 4), cases.arrays()
    state = first = ms.init(params)
    assert not ms.has_updated(state)
    for i, grads in enumerate(stream(8)):
        updates, state = jax.jit(ms.update)(grads, state, params)
        zeros = [not x.any() and not np.signbit(x).any() for x in map(np.asarray, jax.tree.leaves(updates))]
        assert zeros == [i not in (3, 7)] * 2
        assert ms.has_updated(state) == (i in (3, 7))
    cases.effects_barrier()
    assert len(counts) == 2
    assert (int(state.inner_opt_state[0]), int(state.gradient_step), int(state.mini_step)) == (2, 2, 0)
    assert cases.signature(state) == cases.signature(first)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_a_round_passes_on_the_mean_or_the_sum_of_its_gradients(mean: bool, dtype: Any, k: int) -> None:
    """With bf16 gradients too, since they are accumulated in f32. A round of one step passes on each bit."""
    grads, params = stream(k, dtype), cases.arrays(dtype)
    grads[0]["b"] = -jnp.zeros(2, dtype)
    wide = [cases.cast(x, jnp.promote_types(dtype, jnp.float32)) for x in grads]
    once = jax.tree.map(lambda *xs: jnp.asarray(sum(xs) / (k if mean else 1), dtype), *wide)
    _, _, updates = run(tko.MultiSteps(optax.identity(), k, use_grad_mean=mean), grads, params)
    cases.assert_close(updates[-1], once, rtol=1e-5)
    assert k > 1 or cases.same_bits(updates, grads)


def test_accumulators_have_f32_at_least_and_are_wider_where_the_leaf_is() -> None:
    """`accumulator_dtype=None` is for those of the dtype of the leaf."""
    with enable_x64(True):
        params = {name: jnp.ones(1, name) for name in ("bfloat16", "float32", "float64", "complex64")}
        kept, widened = {name: name for name in params}, {name: name for name in params} | {"bfloat16": "float32"}
        for dtype, wanted in ((None, kept), (jnp.float32, widened), ("float32", widened), (np.dtype("f4"), widened)):
            ms = tko.MultiSteps(optax.sgd(0.1), 2, accumulator_dtype=dtype)
            assert {name: x.dtype for name, x in ms.init(params).acc_grads.items()} == wanted


def test_k_from_a_schedule_changes_between_rounds() -> None:
    ms = tko.MultiSteps(optax.identity(), lambda round: jnp.where(round < 2, 1 + round, 3))
    _, state, updates = run(ms, [jnp.full(1, float(i)) for i in range(1, 10)], jnp.zeros(1))
    assert [float(u[0]) for u in updates] == [1, 0, 2.5, 0, 0, 5, 0, 0, 8]
    assert int(state.gradient_step) == 4


# ------------------------------------------------------------------------------------------------------------- NaN


def skipping(tx: Any, k: int) -> Any:
    return tko.MultiSteps(tx, k, should_skip_update_fn=tko.skip_not_finite)


GUARDED: dict[str, Callable[[Any], Any]] = {
    "zero_nans inside": lambda tx: tko.MultiSteps(optax.chain(optax.zero_nans(), tx), 3),
    "zero_nans outside": lambda tx: tko.chain(optax.zero_nans(), tko.MultiSteps(tx, 3), optax.zero_nans()),
    "apply_if_finite inside": lambda tx: tko.MultiSteps(tko.apply_if_finite(tx, 5), 3),
    "apply_if_finite outside": lambda tx: tko.apply_if_finite(tko.MultiSteps(tx, 3), 5),
    "skip_not_finite": lambda tx: skipping(tx, 3),
    "skip_not_finite inside": lambda tx: tko.MultiSteps(skipping(tx, 1), 3),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("guard", GUARDED)
def test_one_bad_number_is_forgotten_after_its_round(guard: str) -> None:
    """Every parameter trains in the next full round; no bad number stays in the state, none is in any update."""
    tx = GUARDED[guard](optax.adam(0.1))
    params, start = cases.arrays(), tx.init(cases.arrays())
    step = jax.jit(tx.update)
    # NaN is all that zero_nans turns to zero.
    for bad in [NAN] if "zero_nans" in guard else [NAN, INF, -INF]:
        for at in range(5):
            grads = stream(10)
            grads[at]["w"] = grads[at]["w"].at[0, 1].set(bad)
            state, moved = start, jax.tree.map(jnp.zeros_like, params)
            for number, g in enumerate(grads):
                updates, state = step(g, state, params)
                assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(updates)), (bad, at, number)
                if number >= 3 * (at // 3 + 1):  # the rounds after
                    moved = jax.tree.map(lambda m, u: m + jnp.abs(u), moved, updates)
            assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state)), (bad, at)
            assert all(bool((x > 0).all()) for x in jax.tree.leaves(moved)), (bad, at)


SKIP: dict[str, Callable[[Any], Any]] = {
    "at the first": lambda o: o.apply_if_finite(optax.trace(1.0), 0),
    "twice": lambda o: o.apply_if_finite(optax.trace(1.0), 2),
    "any number of times": lambda o: o.apply_if_finite(optax.trace(1.0), 5),
    "in rounds": lambda o: o.MultiSteps(optax.trace(1.0), 2, should_skip_update_fn=o.skip_not_finite),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name", SKIP)
def test_what_is_skipped_and_counted_is_what_optax_skips_and_counts(name: str) -> None:
    """One bad number, in any leaf, stops all of them. Jitted or not, each bit of the state is that of Optax."""
    ours, theirs = (SKIP[name](o) for o in (tko, optax))
    params = {"a": jnp.ones(1), "b": jnp.ones(1)}
    state = ours.init(params)
    assert cases.same_bits(state, theirs.init(params))
    for i, value in enumerate((1.0, NAN, 1.0, INF, -INF, NAN, NAN, 1.0, NAN)):
        grads = {**params, "ab"[i % 2]: jnp.array([value])}
        updates, after = jax.jit(theirs.update)(grads, state, params)
        for update in (ours.update, jax.jit(ours.update)):
            assert cases.same_bits(update(grads, state, params), (updates, after))
        assert i != 1 or bool(updates["a"].any()) == (name == "at the first")
        state = after


def test_no_leaves_are_finite() -> None:
    tx, params = tko.apply_if_finite(tko.sgd(0.1), 3), dict[str, Any]()
    updates, state = tx.update(params, tx.init(params), params)
    assert updates == {} and bool(state.last_finite)


CONDITIONAL: dict[str, Callable[[Any, Any], Any]] = {
    "MultiSteps": lambda tx, _: tko.MultiSteps(tx, lambda n: np.int32(2)),
    "apply_if_finite": lambda tx, _: tko.apply_if_finite(tx, 3),
    "conditionally_transform": tko.conditionally_transform,
    "conditionally_mask": tko.conditionally_mask,
}


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("name", CONDITIONAL)
@pytest.mark.usefixtures("nans")
def test_the_updates_of_a_step_that_holds_have_the_dtype_of_those_of_one_that_runs(
    name: str, dtypes: tuple[Any, Any], jitted: bool
) -> None:
    """Whichever dtype is wider, of params or gradients; and with a state restored as NumPy arrays."""
    params, grads = ({"w": jnp.ones(2, dtype)} for dtype in dtypes)
    condition: Any = (lambda step: step >= 1) if jitted else (lambda step: np.bool_(step >= 1))
    tx = CONDITIONAL[name](tko.adam(0.1), condition)
    update, state = jax.jit(tx.update) if jitted else tx.update, tx.init(params)
    first = {"w": grads["w"] * NAN} if name == "apply_if_finite" else grads
    held, after = update(first, jax.tree.map(np.asarray, state), params)
    updates, last = update(grads, jax.tree.map(np.asarray, after), params)
    assert held["w"].dtype == updates["w"].dtype == jnp.float32
    assert (held["w"] == (name == "conditionally_transform")).all() and (updates["w"] < 0).all()
    assert cases.signature(last) == cases.signature(after) == cases.signature(state)


# ------------------------------------------------------------------------------------------- extra args, structures


WRAPPERS_OF_INSTANCES: dict[str, Callable[[Any], Any]] = {
    "chain": lambda ms: tko.chain(tko.clip(1e6), ms),
    "named_chain": lambda ms: tko.named_chain(("clip", tko.clip(1e6)), ("steps", ms)),
    "masked": lambda ms: tko.masked(ms, True),
    "partition": lambda ms: tko.partition({"a": ms}, "a"),
    "selective_transform": lambda ms: tko.transforms.selective_transform(ms, freeze_mask=False),
    "apply_if_finite": lambda ms: tko.apply_if_finite(ms, 3),
    "MultiSteps": lambda ms: tko.MultiSteps(ms, 1),
}


class Doubled(tko.MultiSteps):
    """Updates twice as far."""

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: object) -> Any:
        return super().update(jax.tree.map(lambda x: 2 * x, updates), state, params, **extra_args)


@pytest.mark.parametrize("name", WRAPPERS_OF_INSTANCES)
def test_an_instance_in_a_wrapper_is_its_transformation(name: str) -> None:
    """So it receives extra arguments, and so does one of Optax; and what a subclass overrides is used."""
    wrap, ms = WRAPPERS_OF_INSTANCES[name], tko.MultiSteps(tko.polyak_sgd(), 2)
    params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}

    def two_steps(tx: Any) -> Any:
        _, state = tx.update(grads, tx.init(params), params, value=jnp.array(1.0))
        return tx.update(grads, state, params, value=jnp.array(2.0))

    found = two_steps(wrap(ms))
    for same in (ms.gradient_transformation(), optax.MultiSteps(tko.polyak_sgd(), 2)):
        assert not tk.tree_diff(found, two_steps(wrap(same)))
    assert found[0]["w"][0] < 0
    assert isinstance(ms, optax.MultiSteps) and isinstance(ms.inner_opt, optax.GradientTransformation)
    doubled = wrap(Doubled(tko.sgd(1.0), 1))
    assert (doubled.update(grads, doubled.init(params), params)[0]["w"] == -2).all()


# --------------------------------------------------------------------------------------- in transformations of JAX


HOLDING: dict[str, Callable[[Any], Any]] = {
    "MultiSteps": lambda o: o.chain(o.scale(2.0), o.MultiSteps(o.adam(0.1), 2).gradient_transformation()),
    "apply_if_finite": lambda o: o.apply_if_finite(o.adam(0.1), 5),
}


@pytest.mark.parametrize("name", HOLDING)
def test_derivatives_go_through_steps_that_hold(name: str) -> None:
    """Of what comes out after some steps, with respect to the gradients' scale, as with plain Optax."""

    def after(scale: jax.Array, o: Any) -> jax.Array:
        optimizer, params = HOLDING[name](o), cases.arrays()
        state = optimizer.init(params)
        for i in range(4):
            grads = jax.tree.map(lambda x, i=i: jnp.cos(x + i) * scale + jnp.cos(x + i) ** 2, cases.arrays())
            updates, state = optimizer.update(grads, state, params)
            params = o.apply_updates(params, updates)
        return sum((jnp.sum(x**2) for x in jax.tree.leaves(params)), jnp.float32(0))

    want = float(jax.grad(after)(jnp.float32(1.5), optax))
    assert want != 0
    jitted = jax.jit(after, static_argnums=1)  # so that whether a step is due is not known, as in a loop
    for derivative in (jax.grad, jax.jacfwd):
        assert float(derivative(jitted)(jnp.float32(1.5), tko)) == pytest.approx(want, rel=1e-4)


def test_members_under_vmap_keep_counts_of_their_own() -> None:
    ms, grads, params = tko.MultiSteps(optax.adam(0.1), 3), stream(4), cases.arrays()
    states = [run(ms, grads[:n], params)[1] for n in range(3)]

    def step(state: Any) -> Any:
        return ms.update(grads[3], state, params)

    updates, after = together = jax.jit(jax.vmap(step))(tk.tree_stack(states))
    assert after.mini_step.tolist() == [1, 2, 0]
    assert after.gradient_step.tolist() == [0, 0, 1]
    assert [bool(x.any()) for x in updates["w"]] == [False, False, True]
    for i, state in enumerate(states):
        cases.assert_close(jax.tree.map(lambda x, i=i: x[i], together), step(state), rtol=1e-5)


def test_the_inner_step_is_in_the_program_once() -> None:
    """The program has one form for each platform. JAX prints a jaxpr that several equations share once."""
    tx = tko.MultiSteps(optax.adamw(0.1), 2)
    params = jnp.ones(2)
    text = str(jax.make_jaxpr(tx.update)(params, tx.init(params), params))
    assert text.count(" sqrt ") == 1


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_updates_that_are_smaller_than_the_accumulator_are_broadcast(jit: bool) -> None:
    """A transformation may return a number for each param."""
    of_means = optax.stateless(lambda updates, _: jax.tree.map(lambda g: -jnp.mean(g), updates))
    optimizer = tko.MultiSteps(of_means, 2)
    params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
    update = jax.jit(optimizer.update) if jit else optimizer.update
    state = optimizer.init(params)
    for scale, expected in ((1.0, 0.0), (3.0, -2.0), (5.0, 0.0)):
        updates, state = update({"w": jnp.full((2, 3), scale), "b": jnp.full(3, scale)}, state, params)
        cases.assert_close(updates, {"w": jnp.full((2, 3), expected), "b": jnp.full(3, expected)})


# --------------------------------------------------------------------------------------------------------- weights

WEIGHTS: dict[str, list[float]] = {
    "tokens": [5, 1, 30],
    "one is zero": [3, 0, 2],
    "the first is zero": [0, 2, 5],
    "all are zero": [0, 0, 0],
}


@pytest.mark.table
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.usefixtures("nans")
def test_weights_are_those_of_micro_batches(name: str, mean: bool, jit: bool, dtype: Any) -> None:
    """The mean is that of one batch of all examples. A NaN of weight 0 is left out; so is a round of 0."""
    weights = WEIGHTS[name]
    grads = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    expected = (np.array(weights) @ grads) / (sum(weights) or 1 if mean else 1)
    ms: Any = tko.MultiSteps(tko.sgd(lambda count: 1.0), 3, use_grad_mean=mean, weighted=True)
    params: Any = {"w": jnp.zeros(4, dtype)}
    state: Any = ms.init(params)
    update = jax.jit(ms.update) if jit else ms.update
    assert isinstance(state, training.WeightedMultiStepsState)
    for grad, weight in zip(grads, weights, strict=True):
        given = {"w": jnp.asarray(grad if weight else grad * np.nan)}
        updates, state = update(given, state, params, weight=weight)
        params = tko.apply_updates(params, updates)
    np.testing.assert_allclose(np.float32(params["w"]), -expected, rtol=1e-5 if dtype == jnp.float32 else 1e-2)
    rounds, inner = int(state.gradient_step), int(tko.tree.get(state.inner_opt_state, "count"))
    assert bool(ms.has_updated(state)) == rounds == inner == any(weights)
    assert (int(state.mini_step), float(state.weight_sum)) == (0, sum(weights))


@pytest.mark.parametrize(
    "around", [lambda o, tx: tx, lambda o, tx: o.chain(tx, o.scale(2.0)), lambda o, tx: o.masked(tx, True)]
)
def test_a_weight_that_something_inside_takes_is_passed_on(around: Any) -> None:
    def update(updates: Any, state: Any, params: Any = None, *, weight: Any, **extra: Any) -> Any:
        return jax.tree.map(lambda x: weight * x, updates), state

    params = jnp.ones(2)
    for o in (tko, optax):
        ms = o.MultiSteps(around(o, optax.GradientTransformationExtraArgs(lambda _: (), update)), 1)
        updates, _ = ms.update(params, ms.init(params), params, weight=0.5)
        assert updates[0] in (0.5, 1.0)


def test_a_small_weight_counts_in_a_sum_before_a_large_one() -> None:
    """Also where the sum of the weights is the last one in f32."""
    ms: Any = tko.MultiSteps(tko.sgd(1.0), 2, use_grad_mean=False, weighted=True)
    state = ms.init(jnp.ones(()))
    for weight in (1e-8, 1.0):
        update, state = ms.update(jnp.asarray(1 / weight), state, weight=weight)
    assert float(update) == -2


@pytest.mark.parametrize("weight, grad", [(1e5, 1e-4), (1e-8, 1e3)])
@pytest.mark.parametrize("accumulator_dtype", ["float16", None])
def test_a_weight_that_the_accumulator_cannot_represent_counts_in_a_sum(
    accumulator_dtype: str | None, weight: float, grad: float
) -> None:
    ms: Any = tko.MultiSteps(tko.sgd(1.0), 2, use_grad_mean=False, weighted=True, accumulator_dtype=accumulator_dtype)
    update, state = None, ms.init(jnp.zeros(2, jnp.float16))
    for _ in range(2):
        update, state = ms.update(jnp.full(2, grad, jnp.float16), state, weight=weight)
    np.testing.assert_allclose(np.asarray(update, float), -2 * weight * grad, rtol=1e-2)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_the_mean_of_f64_gradients_has_the_precision_of_f64(jitted: bool) -> None:
    with enable_x64(True):
        ms: Any = tko.MultiSteps(tko.sgd(1.0), 3, weighted=True)
        update: Any = jax.jit(ms.update) if jitted else ms.update
        weights, grads = np.array([0.1, 0.7, 0.3]), np.array([1 / 3, -2 / 7, 5 / 11])
        found, state = None, ms.init(jnp.zeros((), jnp.float64))
        for weight, grad in zip(weights, grads, strict=True):
            found, state = update(jnp.asarray(grad), state, weight=weight)
        np.testing.assert_allclose(np.asarray(found), -np.average(grads, weights=weights), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["int4", "int32", "float8_e5m2", "float16"])
def test_a_weight_may_have_any_dtype(dtype: str) -> None:
    ms, params = tko.MultiSteps(tko.sgd(1.0), 2, weighted=True), jnp.ones(2)
    updates, state = None, ms.init(params)
    for weight in (3, 1):
        updates, state = ms.update(params * weight, state, params, weight=jnp.asarray(weight, dtype))
    assert jax.tree.map(list, updates) == [-2.5, -2.5]


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.usefixtures("nans")
def test_a_skipped_step_adds_no_weight(jitted: bool) -> None:
    """At the start of a round, within one, and after one."""
    ms = tko.MultiSteps(tko.sgd(1.0), 2, should_skip_update_fn=optax.skip_not_finite, weighted=True)
    update: Any = jax.jit(ms.update) if jitted else ms.update
    state: Any = ms.init(jnp.ones(2))
    for _ in range(3):
        _, after = update(jnp.full(2, NAN), state, jnp.ones(2), weight=3.0)
        assert not tk.tree_diff(after._replace(skip_state=()), state._replace(skip_state=()))
        _, state = update(jnp.ones(2), state, jnp.ones(2), weight=2.0)


def two_steps(ms: Any, weights: tuple[Any, Any], q: Any) -> Any:
    """The second update, of gradients 9q and q."""
    params, extra = jnp.ones(()), [{} if weight is None else {"weight": weight} for weight in weights]
    _, state = ms.update(9 * q, ms.init(params), params, **extra[0])
    return ms.update(q, state, params, **extra[1])[0]


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_derivatives_go_through_a_round_that_begins_with_nothing(jitted: bool) -> None:
    """One that is skipped, or has weight 0: also by the weight."""

    def skip(updates: Any, step: Any, params: Any) -> Any:
        return jnp.sum(updates) > 5, ()

    wrap: Any = jax.jit if jitted else lambda f: f
    skipping_one: Any = partial(two_steps, tko.MultiSteps(tko.sgd(1.0), 1, should_skip_update_fn=skip), (None, None))
    assert float(wrap(jax.grad(skipping_one))(1.0)) == -1
    for mean, expected in ((True, -1), (False, -2)):
        ms: Any = tko.MultiSteps(tko.sgd(1.0), 2, mean, weighted=True)
        assert float(wrap(jax.grad(partial(two_steps, ms, (0.0, 2.0))))(1.0)) == expected

        def of_weights(weights: Any, ms: Any = ms) -> Any:
            return two_steps(ms, weights, jnp.ones(()))

        of_zero, of_two = wrap(jax.grad(of_weights))((0.0, 2.0))
        assert float(of_two) == (0 if mean else -1) and np.isfinite(of_zero)


def times_weight() -> Any:
    def update(updates: Any, state: Any, params: Any = None, *, weight: Any, **extra: Any) -> Any:
        return jax.tree.map(lambda x: weight * x, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


def test_weights_reach_whoever_takes_them_and_others_pass_them_on() -> None:
    """A weighted one hands the sum of its round to what is inside."""
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    groups = {"a": tko.MultiSteps(times_weight(), 2, weighted=True), "b": tko.MultiSteps(tko.sgd(1.0), 2)}
    inner: Any = tko.MultiSteps(times_weight(), 2, weighted=True)
    expected: list[tuple[Any, list[float]]] = [
        (tko.partition(groups, {"a": "a", "b": "b"}), [0, 3, 0, 21]),
        (tko.MultiSteps(inner, 2, weighted=True), [0, 0, 0, 24]),
        (tko.MultiSteps(inner, 1), [0, 3, 0, 21]),
        (tko.MultiSteps(times_weight(), 1), [1, 2, 7, 14]),
    ]
    for tx, found in expected:
        state: Any = tx.init(params)
        for weight, update in zip((1.0, 2.0, 7.0, 14.0), found, strict=True):
            updates, state = tx.update(params, state, params, weight=weight)
            assert (updates["a"] == update).all()


@pytest.mark.usefixtures("nans")
def test_a_weight_that_is_nan_shows_in_its_round_and_no_later_or_is_refused_outside_of_jit() -> None:
    ms: Any = tko.MultiSteps(tko.sgd(1.0), 2, weighted=True)
    update = partial(ms.update, jnp.ones(2))
    state, found = ms.init(jnp.ones(2)), []
    for weight in (NAN, 1.0, 1.0, 3.0, 0.0, 0.0):
        updates, state = jax.jit(update)(state, weight=weight)
        found.append(updates[0])
    np.testing.assert_array_equal(found, [0, NAN, 0, -1, 0, 0])
    assert int(state.gradient_step) == 2 and not ms.has_updated(state)
    for weight in (NAN, INF, -1.0):
        with pytest.raises(ValueError, match=f"weight.*{weight}"):
            update(state, weight=weight)


@pytest.mark.parametrize("k", [jnp.array(2), np.int64(2), np.array(2), 2])
def test_the_number_of_steps_may_be_an_array(k: Any) -> None:
    def update(grads: Any, state: Any) -> Any:  # the optimizer may be made inside of jit
        return tko.MultiSteps(tko.sgd(1.0), k).update(grads, state)

    _, state = jax.jit(update)(jnp.ones(2), tko.MultiSteps(tko.sgd(1.0), k).init(jnp.ones(2)))
    assert (jax.jit(update)(jnp.ones(2), state)[0] == -1).all()


@pytest.mark.parametrize("k", [True, 2.5, jnp.array([2]), 0], ids=repr)
def test_the_number_of_steps_is_an_int_of_at_least_1_given_or_from_a_schedule(k: Any) -> None:
    with pytest.raises(ValueError, match="every_k_schedule"):
        tko.MultiSteps(tko.sgd(1.0), k)
    scheduled = tko.MultiSteps(tko.sgd(1.0), lambda count: k)
    with pytest.raises((TypeError, ValueError), match="every_k_schedule"):
        scheduled.update(jnp.ones(2), scheduled.init(jnp.ones(2)))


def loss_of_batch(batch: Any, params: Any) -> Any:
    return (params["w"] * batch).sum()


@pytest.mark.parametrize("name", ["MultiSteps", "apply_if_finite"])
@pytest.mark.usefixtures("nans")
def test_an_eager_step_that_holds_keeps_no_argument_alive(name: str) -> None:
    tx, params, batches = CONDITIONAL[name](tko.sgd(1.0), None), {"w": jnp.ones(2)}, list[Any]()
    for _ in range(3):
        batch = np.ones(2)
        batches.append(weakref.ref(batch))
        value_fn: Any = partial(loss_of_batch, batch)
        tx.update({"w": jnp.full(2, NAN)}, tx.init(params), params, value_fn=value_fn)
        del batch, value_fn
    gc.collect()
    assert [ref() for ref in batches] == [None] * 3


def test_the_mean_of_a_complex_param_keeps_its_imaginary_part_if_the_last_gradient_is_real() -> None:
    params = jnp.zeros(2, jnp.complex64)
    steps = tko.MultiSteps(tko.sgd(1.0), 2)
    state = steps.init(params)
    for grad in (jnp.full(2, 1 + 3j, jnp.complex64), jnp.full(2, 3.0)):
        updates, state = steps.update(grad, state, params)
    np.testing.assert_allclose(updates, -np.full(2, 2 + 1.5j))


def test_a_complex_accumulator_of_real_params_is_real() -> None:
    steps = tko.MultiSteps(tko.sgd(1.0), 2, accumulator_dtype=jnp.complex64)
    state = steps.init({"w": jnp.ones(2), "c": jnp.ones(2, jnp.complex64)})
    assert [x.dtype for x in (state.acc_grads["w"], state.acc_grads["c"])] == [jnp.float32, jnp.complex64]


def test_a_weight_that_nothing_takes_is_an_error() -> None:
    state = tko.MultiSteps(tko.sgd(1.0), 2).init(jnp.ones(2))
    with pytest.raises(TypeError, match="weighted=True"):
        tko.MultiSteps(tko.sgd(1.0), 2).update(jnp.ones(2), state, jnp.ones(2), weight=1.0)
