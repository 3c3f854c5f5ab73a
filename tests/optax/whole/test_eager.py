"""Steps that are not jitted: once warm, nothing is compiled, and nothing is kept."""

import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from jax import monitoring

from tests.optax import cases
from tests.releases import keys
from tests.trees import untyped
from treekit import optax as tko
from treekit import training

WARM = 8  # steps, among them a round of MultiSteps, and one that skips
STEPS = 12
COMPILED = "/jax/core/compile/backend_compile_duration"  # the event that JAX records for each program
recorded: list[str] = []


def record(event: str, duration_secs: float, **_: str | int) -> None:
    recorded.append(event)


monitoring.register_event_duration_secs_listener(record)


class Training:
    """Steps of an optimizer, one after the other; every fifth gradient is not finite."""

    def __init__(self, tx: Any, *, whole: bool = False, model: Any = None) -> None:
        self.tx, self.whole = tx, whole
        self.params = cases.arrays() if model is None else model
        self.state = tx.init(self.params)

    def __call__(self, number: int) -> None:
        self.params, self.state = self.step(self.params, self.state, number)

    def step(self, params: Any, state: Any, number: Any) -> Any:
        scale = jnp.where(number % 5 < 4, 0.1, jnp.inf)
        grads = jax.tree.map(lambda x: (x * scale).astype(x.dtype) if eqx.is_inexact_array(x) else None, params)
        if self.whole:
            return training.apply_gradients(self.tx, grads, state, params, key=jax.random.key(number))
        updates, state = self.tx.update(grads, state, params)
        return tko.apply_updates(params, updates), state


def is_early(step: Any) -> Any:
    return step % 3 < 2


def rounds(**options: Any) -> Any:
    return tko.MultiSteps(tko.adam(0.1), 3, **options).gradient_transformation()


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "MultiSteps": rounds,
    "MultiSteps_skipping": lambda: rounds(should_skip_update_fn=tko.skip_not_finite),
    "MultiSteps_schedule": lambda: tko.MultiSteps(tko.adam(0.1), lambda n: 1 + n % 3),
    "apply_if_finite": lambda: tko.apply_if_finite(tko.adam(0.1), 9),
    "masked": lambda: tko.masked(rounds(), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    "conditionally_mask": lambda: tko.conditionally_mask(tko.adam(0.1), is_early),
    "conditionally_transform": lambda: tko.conditionally_transform(tko.adam(0.1), is_early),
    "stochastic": lambda: training.store_state(tko.adam(0.1), rounding="stochastic"),
    "ema": lambda: tko.chain(tko.adam(0.1), training.params_ema(0.9)),
}


CALLS: dict[str, Callable[[], Callable[[int], object]]] = {
    "stochastic_round": lambda: (
        lambda number: training.stochastic_round(cases.matrix(), jnp.bfloat16, jax.random.key(number))
    ),
    "model_whole": lambda: Training(rounds(), whole=True, model=cases.model().mlp),
    "rounded_whole": lambda: Training(rounds(), whole=True, model=cases.arrays(jnp.bfloat16)),
    "nested_whole": lambda: Training(tko.apply_if_finite(rounds(), 9), whole=True),
    **{name: partial(lambda make: Training(make()), make) for name, make in OPTIMIZERS.items()},
}


@pytest.mark.usefixtures("nans")
# JAX 0.6 keeps what it has traced. It keeps more in the same steps with plain Optax.
@pytest.mark.parametrize("name", keys(CALLS, {"nested_whole": "jax>=0.7"}))
def test_once_warm_nothing_is_compiled_and_nothing_is_kept(name: str) -> None:
    step, numbers = CALLS[name](), itertools.count()
    programs, sizes = list[int](), list[tuple[int, int]]()
    for steps in (WARM, STEPS, STEPS):
        for number in itertools.islice(numbers, steps):
            step(number)
        programs.append(recorded.count(COMPILED))
        sizes.append(kept())
    assert len(set(programs)) == 1
    growth = [(after[0] - size[0], after[1] - size[1]) for size, after in itertools.pairwise(sizes)]
    arrays, objects = min(growth)  # what is filled once only, such as a cache of a bounded size, is in one of them
    assert arrays == 0
    assert objects < STEPS
    jax.jit(lambda x: x + 1)(jnp.ones(7))  # else nothing would be counted
    assert recorded.count(COMPILED) > programs[0]


def kept() -> tuple[int, int]:
    """The bytes of all arrays, and the number of JAX's objects; beartype keeps some of its own."""
    gc.collect()
    objects = sum(str(type(x).__module__).startswith(("jax.", "jaxlib")) for x in gc.get_objects())
    return sum(x.nbytes for x in untyped.live_arrays()), objects


@pytest.mark.usefixtures("nans")
@pytest.mark.parametrize("name, whole", [(name, i % 2 == 0) for i, name in enumerate(OPTIMIZERS)])
def test_they_are_the_steps_of_a_jitted_function(name: str, whole: bool) -> None:
    training = Training(OPTIMIZERS[name](), whole=whole)
    jitted, theirs = jax.jit(training.step), (training.params, training.state)
    for number in range(WARM):
        training(number)
        theirs = jitted(*theirs, number)
        ours = (training.params, training.state)
        assert cases.signature(ours) == cases.signature(theirs)
        cases.assert_close(cases.arrays_of(ours), cases.arrays_of(theirs), rtol=1e-4)


def test_a_flag_that_is_not_a_scalar_is_rejected_as_under_jit() -> None:
    tx = tko.conditionally_mask(tko.sgd(0.1), lambda step: jnp.ones(1, bool))
    state = tx.init(cases.arrays())
    for update in (tx.update, jax.jit(tx.update)):
        with pytest.raises(TypeError, match="scalar"):
            update(cases.arrays(), state, cases.arrays())


@pytest.mark.parametrize("name", ["MultiSteps", "conditionally_mask", "conditionally_transform"])
def test_a_leaf_without_an_update_has_none_in_each_step(name: str) -> None:
    """Also in one that does not run the inner transformation, a user's own, which returns None for it."""
    sgd = optax.sgd(0.1)
    only_w = optax.stateless(lambda updates, params: {"w": sgd.update(updates["w"], sgd.init(None))[0], "b": None})
    tx = getattr(tko, name)(only_w, 2 if name == "MultiSteps" else lambda i: i % 2 == 1)
    for update in (tx.update, jax.jit(tx.update)):
        state = tx.init(cases.arrays())
        for number in range(4):
            updates, state = update(cases.arrays(), state, cases.arrays())
            assert updates["b"] is None
            assert (updates["w"] < 0).any() == (number % 2 == 1 or name == "conditionally_transform")


def test_a_flag_among_the_extra_arguments_counts() -> None:
    """What is not an array may decide which leaves have an update."""

    def update(updates: Any, state: Any, params: Any = None, *, train: bool, **extra: Any) -> Any:
        return updates if train else jax.tree.map(lambda _: None, updates), state

    tx = tko.MultiSteps(optax.GradientTransformationExtraArgs(lambda params: (), update), 9)
    given = cases.arrays()
    state = tx.init(given)
    for train in (True, False, True):
        updates, state = tx.update(given, state, given, train=train, seed=2**70)
        assert bool(jax.tree.leaves(updates)) is train
