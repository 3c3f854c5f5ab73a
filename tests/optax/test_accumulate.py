"""MultiSteps: the inner transformation runs on the k-th step only, and no NaN outlives its round."""

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
from treekit import optax as tko

NAN = float("nan")


def stream(n: int, seed: int = 0) -> list[dict[str, jax.Array]]:
    """Gradients of `n` micro-steps."""
    rng = np.random.default_rng(seed)
    return [{k: jnp.asarray(rng.normal(size=x.shape), x.dtype) for k, x in cases.arrays().items()} for _ in range(n)]


def bitwise(a: Any, b: Any) -> bool:
    same = cases.structure(a) == cases.structure(b)
    return same and all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() and x.dtype == y.dtype
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def run(ms: Any, grads: list[Any], params: Any, state: Any = None, **extra: Any) -> tuple[Any, Any, list[Any]]:
    """Params and state at the end, and the updates of every step; jitted."""
    state = ms.init(params) if state is None else state
    step = jax.jit(lambda g, s, p: ms.update(g, s, p, **extra))
    seen = []
    for g in grads:
        updates, state = step(g, state, params)
        params = tko.apply_updates(params, updates)
        seen.append(updates)
    return params, state, seen


def counting(counts: list[int]) -> optax.GradientTransformation:
    """sgd that reports each time it runs, from within the compiled program."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        jax.debug.callback(lambda: counts.append(1))
        return jax.tree.map(jnp.negative, updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros([], jnp.int32), update)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "multi_steps": lambda tx: tko.MultiSteps(tx, 2).gradient_transformation(),
    "sum": lambda tx: tko.MultiSteps(tx, 2, use_grad_mean=False, accumulator_dtype=None).gradient_transformation(),
    "of_masked": lambda tx: tko.MultiSteps(tko.masked(tx, True), lambda step: 1 + step).gradient_transformation(),
    "masked": lambda tx: tko.masked(tko.MultiSteps(tx, 3).gradient_transformation(), True),
    "partition": lambda tx: tko.partition({"a": tko.MultiSteps(tx, 3).gradient_transformation()}, "a"),
    "of_finite": lambda tx: tko.MultiSteps(tko.apply_if_finite(tx, 2), 2).gradient_transformation(),
    "finite": lambda tx: tko.apply_if_finite(tko.MultiSteps(tx, 2).gradient_transformation(), 2),
    "injected": lambda tx: tko.inject_hyperparams(
        lambda scale: optax.chain(tko.MultiSteps(tx, 2).gradient_transformation(), optax.scale(scale))
    )(0.5),
}


@pytest.mark.parametrize("wrap, name, kind", cases.cells(WRAPPERS, 2, whole=("multi_steps",), every=6))
def test_laws(wrap: Callable[[Any], Any], name: str, kind: str) -> None:
    # Optax's own lbfgs writes f32 gradients into a bf16 memory, which JAX announces to refuse.
    cases.check_laws(wrap(cases.OPTIMIZERS[name](tko if name.startswith("lbfgs") else optax)), kind)


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "clipped", "schedule_free"])
@pytest.mark.parametrize("mean", [True, False])
def test_it_is_optax_on_plain_params(name: str, mean: bool) -> None:
    tx = cases.OPTIMIZERS[name](optax)
    ours, theirs = (o.MultiSteps(tx, 2, use_grad_mean=mean) for o in (tko, optax))
    cases.same_as_optax(ours.gradient_transformation(), theirs.gradient_transformation(), "f32")


# ------------------------------------------------------------------------------------------------- what holds, holds


def test_a_step_that_holds_runs_nothing_and_returns_exact_zeros() -> None:
    counts: list[int] = []
    ms, params = tko.MultiSteps(counting(counts), 4), cases.arrays()
    state = ms.init(params)
    assert not ms.has_updated(state)
    for i, grads in enumerate(stream(8)):
        updates, state = jax.jit(ms.update)(grads, state, params)
        zeros = [not x.any() and not np.signbit(x).any() for x in map(np.asarray, jax.tree.leaves(updates))]
        assert zeros == [i not in (3, 7)] * 2
        assert ms.has_updated(state) == (i in (3, 7))
    cases.effects_barrier()
    assert len(counts) == 2
    assert (int(state.inner_opt_state), int(state.gradient_step), int(state.mini_step)) == (2, 2, 0)


@pytest.mark.parametrize("name", ["sgd", "adamw", "numbers", "clipped", "radam"])
@pytest.mark.parametrize("kind", ["f32", "bf16", "mixed"])
def test_k_of_one_is_the_bare_transformation(name: str, kind: str) -> None:
    """Bit for bit in f32. In 16 bits, how XLA rounds between fused operations depends on the CPU."""
    params = cases.PARAMS[kind]()
    bare = tko.chain(cases.OPTIMIZERS[name](optax))
    ms = tko.MultiSteps(cases.OPTIMIZERS[name](optax), 1)
    grads = [cases.gradient(params)] * 3
    a, state_a, updates_a = run(ms, grads, params)
    b, state_b, updates_b = run(bare, grads, params)
    for x, y in ((a, b), (updates_a, updates_b), (state_a.inner_opt_state, state_b[0])):
        assert bitwise(x, y) if kind == "f32" else tk.tree_diff(x, y, rtol=2**-5, atol=1e-6) == ()


def test_k_of_one_keeps_the_sign_of_zero() -> None:
    ms = tko.MultiSteps(optax.identity(), 1)
    updates, _ = ms.update(jnp.array([-0.0]), ms.init(jnp.ones(1)), jnp.ones(1))
    assert np.signbit(updates).all()


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_k_steps_are_one_on_the_mean_or_the_sum(mean: bool, dtype: Any) -> None:
    """With bf16 gradients too, since they are accumulated in f32."""
    grads = [jax.tree.map(lambda x: x.astype(dtype), g) for g in stream(5)]
    params = cases.arrays(dtype)
    total = jax.tree.map(lambda *xs: sum(x.astype(jnp.promote_types(dtype, jnp.float32)) for x in xs), *grads)
    once = jax.tree.map(lambda x: (x / 5 if mean else x).astype(dtype), total)
    a, _, _ = run(tko.MultiSteps(optax.adam(0.1), 5, use_grad_mean=mean), grads, params)
    b, _, _ = run(tko.adam(0.1), [once], params)
    cases.assert_close(a, b, rtol=1e-5)


def test_accumulators_have_f32_at_least_and_are_wider_where_the_leaf_is() -> None:
    params = {"b": jnp.ones(1, jnp.bfloat16), "c": jnp.ones(1, jnp.complex64), "f": jnp.ones(1, jnp.float32)}
    acc = tko.MultiSteps(optax.sgd(0.1), 2).init(params).acc_grads
    assert {k: x.dtype.name for k, x in acc.items()} == {"b": "float32", "c": "complex64", "f": "float32"}
    acc = tko.MultiSteps(optax.sgd(0.1), 2, accumulator_dtype=None).init(params).acc_grads
    assert {k: x.dtype for k, x in acc.items()} == {k: x.dtype for k, x in params.items()}
    with jax.enable_x64(True):
        acc = tko.MultiSteps(optax.sgd(0.1), 2).init(jnp.ones(1, jnp.float64)).acc_grads
        assert acc.dtype == jnp.float64
    # 256 + 1 is 256 in bf16, so a sum in bf16 would stand still.
    ms = tko.MultiSteps(optax.identity(), 4, use_grad_mean=False)
    _, _, updates = run(ms, [jnp.full(1, x, jnp.bfloat16) for x in (256, 1, 1, 2)], jnp.zeros(1, jnp.bfloat16))
    assert float(updates[-1][0]) == 260


# -------------------------------------------------------------------------------------------------- schedules, skips


def test_k_from_a_schedule_changes_between_rounds() -> None:
    ms = tko.MultiSteps(optax.identity(), lambda round: jnp.where(round < 2, 1 + round, 3))
    _, state, updates = run(ms, [jnp.full(1, float(i)) for i in range(1, 10)], jnp.zeros(1))
    assert [float(u[0]) for u in updates] == [1, 0, 2.5, 0, 0, 5, 0, 0, 8]
    assert int(state.gradient_step) == 4


def skip_vectors(updates: Any, gradient_step: Any, params: Any) -> Any:
    return jnp.ones(2), {}


def step_of(k: Any, **options: Any) -> Any:
    ms = tko.MultiSteps(optax.sgd(0.1), k, **options)
    return ms.update(jnp.ones(2), ms.init(jnp.ones(2)), jnp.ones(2))


NOT_A_NUMBER = "every_k_schedule must return an int"
# The words of the error, and what is called.
WRONG: dict[str, list[Callable[[], Any]]] = {
    f"{NOT_A_NUMBER}.*2.5": [lambda: step_of(lambda n: 2.5)],
    f"{NOT_A_NUMBER}.*learning rates": [lambda: step_of(optax.linear_schedule(0.1, 0.01, 10))],
    rf"{NOT_A_NUMBER} of shape \(\)": [lambda: step_of(lambda n: jnp.array([2])), lambda: step_of(lambda n: True)],
    "every_k_schedule must return at least 1, but returned 0": [lambda: step_of(lambda n: 0)],
    "every_k_schedule": [partial(step_of, k) for k in (0, -1, np.int64(0), np.int32(-3), 0.5)],
    "should_skip_update_fn": [lambda: step_of(2, should_skip_update_fn=skip_vectors)],
    "accumulator_dtype must be floating-point or complex, found int32": [
        lambda: step_of(2, accumulator_dtype=jnp.int32)
    ],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_named(message: str) -> None:
    for call in WRONG[message]:
        with pytest.raises((TypeError, ValueError), match=message):
            call()


@pytest.mark.usefixtures("nans")
def test_steps_that_should_be_skipped_leave_everything_but_the_skip_state() -> None:
    grads = stream(5)
    grads[1] = jax.tree.map(lambda x: x * NAN, grads[1])
    grads[3] = jax.tree.map(lambda x: x * jnp.inf, grads[3])
    ours, theirs = (o.MultiSteps(o.adam(0.1), 3, should_skip_update_fn=o.skip_not_finite) for o in (tko, optax))
    params = cases.arrays()
    a, state, updates = run(ours, grads, params)
    b, their_state, _ = run(theirs, grads, params)
    cases.assert_close(a, b)
    assert cases.structure(state) == cases.structure(their_state)
    assert [bool(u["w"].any()) for u in updates] == [False] * 4 + [True]
    plain, _, _ = run(tko.MultiSteps(tko.adam(0.1), 3), [grads[0], grads[2], grads[4]], params)
    assert bitwise(a, plain)
    _, state, _ = run(ours, grads[:2], params)
    assert bool(state.skip_state["should_skip"]) and int(state.skip_state["num_not_finite"]) == 8
    assert int(state.mini_step) == 1


def test_large_updates_are_skipped() -> None:
    def skip(updates: Any, gradient_step: Any, params: Any) -> Any:
        return optax.skip_large_updates(updates, gradient_step, params, max_squared_norm=10.0)

    ms = tko.MultiSteps(optax.identity(), 2, should_skip_update_fn=skip)
    _, _, updates = run(ms, [jnp.array([1.0]), jnp.array([9.0]), jnp.array([3.0])], jnp.zeros(1))
    assert [float(u[0]) for u in updates] == [0, 0, 2]


# ------------------------------------------------------------------------------------------------------------- NaN


GUARDED: dict[str, Callable[[Any], Any]] = {
    "zero_nans inside": lambda tx: tko.MultiSteps(optax.chain(optax.zero_nans(), tx), 3).gradient_transformation(),
    "zero_nans outside": lambda tx: tko.chain(
        optax.zero_nans(), tko.MultiSteps(tx, 3).gradient_transformation(), optax.zero_nans()
    ),
    "apply_if_finite inside": lambda tx: tko.MultiSteps(tko.apply_if_finite(tx, 5), 3).gradient_transformation(),
    "apply_if_finite outside": lambda tx: tko.apply_if_finite(tko.MultiSteps(tx, 3).gradient_transformation(), 5),
    "skip_not_finite": lambda tx: tko.MultiSteps(
        tx, 3, should_skip_update_fn=tko.skip_not_finite
    ).gradient_transformation(),
    "skip_not_finite inside": lambda tx: tko.MultiSteps(
        tko.MultiSteps(tx, 1, should_skip_update_fn=tko.skip_not_finite).gradient_transformation(), 3
    ).gradient_transformation(),
}


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("guard", GUARDED)
def test_one_bad_number_is_forgotten_after_its_round(guard: str) -> None:
    """Every parameter trains in the next full round; no bad number stays in the state, none is in any update."""
    tx = GUARDED[guard](optax.adam(0.1))
    params, start = cases.arrays(), tx.init(cases.arrays())
    step = jax.jit(tx.update)
    # NaN is all that zero_nans turns to zero.
    for bad in [NAN] if "zero_nans" in guard else [NAN, float("inf"), float("-inf")]:
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


@pytest.mark.usefixtures("nans")
def test_a_round_after_a_bad_one_is_as_if_nothing_had_been() -> None:
    grads = stream(4)
    bad = [jax.tree.map(lambda x: x * NAN, g) for g in grads[:2]]
    tx = optax.chain(optax.zero_nans(), optax.sgd(0.1))
    params = cases.arrays()
    a, _, _ = run(tko.MultiSteps(tx, 2), [*bad, *grads[2:]], params)
    b, _, _ = run(tko.MultiSteps(tx, 2), grads[2:], params)
    assert bitwise(a, b)


# ------------------------------------------------------------------------------------------- extra args, structures


def test_extra_arguments_reach_the_inner_transformation_on_the_step_that_runs() -> None:
    def update(updates: Any, state: Any, params: Any = None, *, value: Any, grad: Any, **extra: Any) -> Any:
        return jax.tree.map(lambda g: value * g, grad), state

    inner = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    ms = tko.MultiSteps(inner, 2)
    state = ms.init(jnp.ones(2))
    for value in (2.0, 3.0):
        updates, state = ms.update(jnp.ones(2), state, jnp.ones(2), value=jnp.array(value), grad=jnp.full(2, value))
    np.testing.assert_allclose(updates, [9.0, 9.0])


WRAPPERS_OF_INSTANCES: dict[str, Callable[[Any], Any]] = {
    "chain": lambda ms: tko.chain(tko.clip(1e6), ms),
    "named_chain": lambda ms: tko.named_chain(("clip", tko.clip(1e6)), ("steps", ms)),
    "masked": lambda ms: tko.masked(ms, True),
    "partition": lambda ms: tko.partition({"a": ms}, "a"),
    "filtered": tko.filtered,
    "apply_if_finite": lambda ms: tko.apply_if_finite(ms, 3),
    "MultiSteps": lambda ms: tko.MultiSteps(ms, 1),
}


@pytest.mark.parametrize("name", WRAPPERS_OF_INSTANCES)
def test_an_instance_in_a_wrapper_is_its_transformation(name: str) -> None:
    """So it receives extra arguments."""
    wrap, ms = WRAPPERS_OF_INSTANCES[name], tko.MultiSteps(tko.polyak_sgd(), 2)
    params, grads = {"w": jnp.ones(2), "name": "scale"}, {"w": jnp.ones(2), "name": None}
    instance, transformation = wrap(ms), wrap(ms.gradient_transformation())
    states = instance.init(params), transformation.init(params)
    updates: Any = None
    for _ in range(2):
        (updates, state), other = (
            tx.update(grads, state, params, value=jnp.array(2.0))
            for tx, state in zip((instance, transformation), states, strict=True)
        )
        assert not tk.tree_diff((updates, state), other)
        states = state, other[1]
    assert updates["w"][0] < 0
    taken = [
        tko.apply_gradients(tx, grads, tx.init(params), params, value=jnp.array(2.0))
        for tx in (instance, transformation)
    ]
    assert not tk.tree_diff(*taken)


class Doubled(tko.MultiSteps):
    """Updates twice as far."""

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: object) -> Any:
        return super().update(jax.tree.map(lambda x: 2 * x, updates), state, params, **extra_args)


@pytest.mark.parametrize("name", WRAPPERS_OF_INSTANCES)
def test_what_a_subclass_overrides_is_used_in_a_wrapper(name: str) -> None:
    tx = WRAPPERS_OF_INSTANCES[name](Doubled(tko.sgd(1.0), 1))
    params = {"w": jnp.ones(2)}
    assert (tx.update(params, tx.init(params), params)[0]["w"] == -2).all()


def test_one_of_optax_receives_extra_arguments_too() -> None:
    params = jnp.ones(2)
    ms = optax.MultiSteps(optax.polyak_sgd(), 1)
    transformations: list[Any] = [ms, tko.chain(ms)]
    for tx in transformations:
        new, _ = tko.apply_gradients(tx, params, tx.init(params), params, value=jnp.array(1.0))
        assert (new == 0.5).all()


def test_state_that_holds_ints_bools_and_keys_is_chosen_not_averaged() -> None:
    tx = optax.chain(cases.of_numbers(), optax.add_noise(0.1, 0.5, 0))
    ms = tko.MultiSteps(tx, 2)
    params = cases.arrays()
    _, state, _ = run(ms, stream(3), params)
    assert cases.signature(state) == cases.signature(ms.init(params))
    numbers = state.inner_opt_state[0]
    assert (int(numbers.steps), bool(numbers.seen)) == (1, True)
    assert float(numbers.scale) == pytest.approx(0.9)


def test_members_under_vmap_keep_counts_of_their_own() -> None:
    ms = tko.MultiSteps(optax.adam(0.1), 3)
    grads = stream(4)
    params = cases.arrays()
    states = [ms.init(params)]
    for g in grads[:2]:
        states.append(run(ms, [g], params, states[-1])[1])
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
    updates, after = jax.jit(jax.vmap(lambda s: ms.update(grads[3], s, params)))(stacked)
    assert after.mini_step.tolist() == [1, 2, 0]
    assert after.gradient_step.tolist() == [0, 0, 1]
    assert [bool(x.any()) for x in updates["w"]] == [False, False, True]
    for i, state in enumerate(states):
        alone = ms.update(grads[3], state, params)
        cases.assert_close(jax.tree.map(lambda x, i=i: x[i], (updates, after)), alone, rtol=1e-5)


def test_donated_and_in_a_scan() -> None:
    ms = tko.MultiSteps(optax.adam(0.1), 2)
    grads = stream(4)
    end, state, _ = run(ms, grads, cases.arrays())

    def body(carry: Any, g: Any) -> Any:
        params, state = carry
        updates, state = ms.update(g, state, params)
        return (tko.apply_updates(params, updates), state), None

    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *grads)
    scan = jax.jit(lambda carry, gs: jax.lax.scan(body, carry, gs)[0], donate_argnums=0)
    # A buffer may be donated once only, and the zeros of a new state are one each.
    carry = jax.tree.map(jnp.copy, (cases.arrays(), ms.init(cases.arrays())))
    cases.assert_close(scan(carry, stacked), (end, state))


def test_forward_and_reverse_mode_go_through() -> None:
    """Meta-learning: the learning rate's effect on what came after, as on plain Optax."""

    def after(rate: jax.Array, o: Any) -> jax.Array:
        ms = o.MultiSteps(o.sgd(rate), 2)
        params = jnp.ones(2)
        state = ms.init(params)
        for _ in range(4):
            updates, state = ms.update(2 * params, state, params)
            params = optax.apply_updates(params, updates)
        return jnp.sum(params**2)

    rate = jnp.array(0.1)
    want = jax.grad(after)(rate, optax)
    assert float(jax.grad(after)(rate, tko)) == pytest.approx(float(want))
    assert float(jax.jacfwd(after)(rate, tko)) == pytest.approx(float(want))


def test_the_class_and_its_state_are_those_of_optax() -> None:
    ms = tko.MultiSteps(tko.adamw(0.1), 2)
    assert isinstance(ms, optax.MultiSteps) and isinstance(ms.inner_opt, optax.GradientTransformation)
    assert isinstance(ms.gradient_transformation(), optax.GradientTransformationExtraArgs)
    assert isinstance(ms.init(cases.model()), optax.MultiStepsState)


def test_an_inner_step_that_reads_params_leaks_no_tracer() -> None:
    params = cases.arrays()
    tx = tko.MultiSteps(tko.adamw(0.1), 2)
    state = tx.init(params)
    with jax.checking_leaks():
        jax.jit(tx.update)(params, state, params)


def test_the_inner_step_is_in_the_program_once() -> None:
    """The program has one form for each platform. JAX prints a jaxpr that several equations share once."""
    tx = tko.MultiSteps(optax.adamw(0.1), 2)
    params = jnp.ones(2)
    text = str(jax.make_jaxpr(tx.update)(params, tx.init(params), params))
    assert text.count(" sqrt ") == 1


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_updates_may_be_smaller_than_the_accumulator(jit: bool) -> None:
    """A transformation may return a number for each param, which apply_updates broadcasts."""
    of_means = optax.stateless(lambda updates, _: jax.tree.map(lambda g: -jnp.mean(g), updates))
    optimizer = tko.MultiSteps(of_means, 2)
    params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}
    update = jax.jit(optimizer.update) if jit else optimizer.update
    state = optimizer.init(params)
    for scale, expected in ((1.0, 0.0), (3.0, -2.0), (5.0, 0.0)):
        grads = {"w": jnp.full((2, 3), scale), "b": jnp.full(3, scale)}
        updates, state = update(grads, state, params)
        assert {name: (x.shape, float(x)) for name, x in updates.items()} == {"w": ((), expected), "b": ((), expected)}


WEIGHTS: dict[str, list[float]] = {
    "equal": [1, 1, 1],
    "tokens": [5, 1, 30],
    "one is zero": [3, 0, 2],
    "the first is zero": [0, 2, 5],
    "only the last": [0, 0, 4],
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("whole", [True, False], ids=["apply_gradients", "update"])
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.usefixtures("nans")
def test_weights_are_those_of_micro_batches(name: str, mean: bool, whole: bool, dtype: Any) -> None:
    """The mean is that of one batch of all examples; a NaN of weight 0 is left out."""
    weights = WEIGHTS[name]
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(3, 4)).astype(np.float32)
    expected = (np.array(weights) @ grads) / (sum(weights) if mean else 1)
    ms: Any = tko.MultiSteps(tko.sgd(1.0), 3, use_grad_mean=mean, weighted=True)
    params: Any = {"w": jnp.zeros(4, dtype)}
    state: Any = ms.init(params)
    assert isinstance(state, tko.WeightedMultiStepsState)
    for grad, weight in zip(grads, weights, strict=True):
        given = {"w": jnp.asarray(grad if weight else grad * np.nan)}
        if whole:
            params, state = tko.apply_gradients(ms, given, state, params, weight=weight)
        else:
            updates, state = jax.jit(lambda g, s, p, w: ms.update(g, s, p, weight=w))(given, state, params, weight)
            params = tko.apply_updates(params, updates)
    np.testing.assert_allclose(np.float32(params["w"]), -expected, rtol=1e-5 if dtype == jnp.float32 else 1e-2)
    assert (int(state.mini_step), int(state.gradient_step), float(state.weight_sum)) == (0, 1, 0)


@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
@pytest.mark.usefixtures("nans")
def test_a_round_without_weight_is_skipped_and_a_skipped_step_adds_none(jitted: bool) -> None:
    ms = tko.MultiSteps(tko.adamw(0.1, weight_decay=0.5), 2, should_skip_update_fn=optax.skip_not_finite, weighted=True)
    params = {"w": jnp.ones(2)}
    update: Any = jax.jit(ms.update) if jitted else ms.update
    state: Any = ms.init(params)
    before = state
    for _ in range(2):
        updates, state = update({"w": jnp.ones(2)}, state, params, weight=0.0)
        assert (updates["w"] == 0).all()
    assert not tk.tree_diff(state._replace(skip_state=()), before._replace(skip_state=()))
    _, state = update({"w": jnp.full(2, jnp.nan)}, state, params, weight=3.0)
    assert not tk.tree_diff(state._replace(skip_state=()), before._replace(skip_state=()))


@pytest.mark.parametrize(
    "extra, error, match",
    [
        ({}, TypeError, r"needs the weight of each step.*update\(grads, state, params, weight=n\)"),
        ({"weight": -1.0}, ValueError, r"weight must be finite and not negative, found -1\.0"),
        ({"weight": np.inf}, ValueError, r"weight must be finite and not negative, found inf"),
        ({"weight": jnp.ones(2)}, TypeError, r"weight must be a real number of shape \(\), found"),
        ({"weight": "many"}, TypeError, r"weight must be a real number of shape \(\), found 'many'"),
    ],
)
def test_a_wrong_weight_is_an_error(extra: dict[str, Any], error: type[Exception], match: str) -> None:
    ms = tko.MultiSteps(tko.sgd(1.0), 2, weighted=True)
    params = {"w": jnp.ones(2)}
    with pytest.raises(error, match=match):
        ms.update(params, ms.init(params), params, **extra)
    plain = tko.MultiSteps(tko.sgd(1.0), 2)
    with pytest.raises(TypeError, match=r"MultiSteps has no weights: MultiSteps\(optimizer, k, weighted=True\)"):
        plain.update(params, plain.init(params), params, weight=1.0)


HOLDING_EAGERLY: dict[str, Callable[[], Any]] = {
    "MultiSteps": lambda: tko.MultiSteps(tko.sgd(1.0), 2),
    "apply_if_finite": lambda: tko.apply_if_finite(tko.sgd(1.0), 9),
}


@pytest.mark.parametrize("name", HOLDING_EAGERLY)
@pytest.mark.usefixtures("nans")
def test_an_eager_step_that_holds_keeps_no_closure_alive(name: str) -> None:
    tx, params = HOLDING_EAGERLY[name](), {"w": jnp.ones(2)}
    state = tx.init(params)

    def step(state: Any) -> tuple[Any, Any]:
        batch = np.full(2, np.nan)

        def value_fn(params: Any) -> Any:
            return (params["w"] * batch).sum()

        _, state = tx.update({"w": jnp.full(2, jnp.nan)}, state, params, value_fn=value_fn)
        return state, weakref.ref(batch)

    batches: list[Any] = []
    for _ in range(3):
        state, batch = step(state)
        batches.append(batch)
    gc.collect()
    assert [ref() for ref in batches] == [None] * 3
