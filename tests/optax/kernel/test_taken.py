"""A PRNG key among the extra arguments, whose name nothing inside takes, raises; whatever takes it receives it."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treekit import optax as tko
from treekit import training

PARAMS = {"w": jnp.ones(2), "b": jnp.ones(2)}
KEYS = {"new": jax.random.key(0), "old": jax.random.PRNGKey(0), "several": {"dropout": jax.random.key(1)}}


def named(updates: Any, state: Any, params: Any = None, *, rng: Any) -> Any:
    return updates, state


def any_name(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
    return updates, state


class Noisy(optax.schedules.StatefulSchedule):
    def init(self) -> Any:
        return jnp.zeros(())

    def update(self, state: Any, *, rng: Any = None, **extra: Any) -> Any:
        return state

    def __call__(self, state: Any, **extra: Any) -> Any:
        return 0.1


class Own(tko.MultiSteps[optax.MultiStepsState]):
    """A subclass of the user's."""


def decorated(update: Any) -> Any:
    @functools.wraps(update)
    def without_key(*args: Any, rng: Any) -> Any:
        return update(*args)

    return without_key


def with_empty_cell(update: Any) -> Any:
    """Return an update that closes over a name which has no value, as `except ... as error` leaves one too."""
    gone = None

    def own(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return update(updates, state, params, **extra) if extra else gone

    del gone
    return own


class OnDisk(Mapping[str, Any]):
    """A file of arrays, as `np.load` returns one, which reads what it is asked for."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("it was read")

    def __iter__(self) -> Iterator[str]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


def with_file(file: OnDisk) -> Any:
    def own(updates: Any, state: Any, params: Any = None, *, rng: Any) -> Any:
        return (updates, state) if len(file) else (file["w"], state)

    return own


def with_extra(update: Callable[..., Any]) -> optax.GradientTransformationExtraArgs:
    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


TAKE: dict[str, Callable[..., Any]] = {
    "by name": named,
    "any": any_name,
    "jitted": jax.jit(named),
    "decorated": decorated(optax.identity().update),
    "partial": functools.partial(named),
    "an empty cell": with_empty_cell(named),
    "a file": with_file(OnDisk()),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda tx: tko.chain(tx),
    "chain": lambda tx: tko.chain(tko.clip(1.0), tx),
    "chain of Optax": lambda tx: tko.chain(optax.chain(optax.clip(1.0), tx)),
    "named_chain": lambda tx: tko.named_chain(("own", tx), ("sgd", tko.sgd(0.1))),
    "masked": lambda tx: tko.masked(tx, {"w": True, "b": False}),
    "partition": lambda tx: tko.partition({"own": tx, "sgd": tko.sgd(0.1)}, {"w": "own", "b": "sgd"}),
    "MultiSteps": lambda tx: tko.MultiSteps(tko.chain(tx, tko.adam(0.1)), 2),
    "a subclass": lambda tx: Own(tx, 2),
    "inject_hyperparams": lambda tx: tko.inject_hyperparams(lambda rate: optax.chain(tx, optax.sgd(rate)))(0.1),
    "apply_if_finite": lambda tx: tko.apply_if_finite(tx, 3),
    "store_state": lambda tx: training.store_state(tko.chain(tx, tko.adam(0.1)), jnp.bfloat16),
}


def step(tx: Any, **extra: Any) -> None:
    training.apply_gradients(tx, PARAMS, tx.init(PARAMS), PARAMS, **extra)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", TAKE)
def test_what_takes_a_key_receives_it(kind: str, wrapper: str) -> None:
    step(WRAPPERS[wrapper](with_extra(TAKE[kind])), rng=KEYS["new"])


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "inject_hyperparams"])  # not of Optax
@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_nothing_takes_raises(key: str, wrapper: str) -> None:
    tx = WRAPPERS[wrapper](tko.adam(0.1))
    step(tx, value=1.0, batch=jnp.ones(2), sizes=jnp.ones(2, jnp.uint32))  # like a key of the old style
    with pytest.raises(TypeError, match=r"'rng'.*training\.in_nnx"):
        step(tx, rng=KEYS[key])
    with pytest.raises(TypeError, match="'rng'"):
        jax.jit(functools.partial(step, tx))(rng=KEYS[key])


@pytest.mark.parametrize("inject", [tko.inject_hyperparams, optax.inject_hyperparams])
@pytest.mark.parametrize("kind", TAKE)
def test_what_a_factory_of_your_own_makes_in_each_update_may_take_it(kind: str, inject: Any) -> None:
    injected = inject(lambda rate: optax.chain(with_extra(TAKE[kind]), optax.sgd(rate)))(0.1)
    step(tko.chain(injected), rng=KEYS["new"])


def test_functions_inside_and_among_the_extra_arguments_take_keys() -> None:
    def loss(params: Any, rng: Any) -> Any:
        return jnp.sum(params["w"] ** 2 + params["b"] ** 2)

    key = KEYS["new"]
    step(tko.chain(tko.lbfgs()), value=4.0, grad=PARAMS, value_fn=loss, rng=key)
    step(tko.conditionally_transform(tko.adam(0.1), lambda count, rng: count >= 0, forward_extra_args=True), rng=key)
    step(tko.inject_hyperparams(tko.adam)(Noisy()), rng=key)


def test_optax_drops_extra_arguments_of_a_transformation_that_does_not_say_that_it_takes_them() -> None:
    """The update of a plain GradientTransformation never receives them, whatever its signature."""
    tx: Any = optax.GradientTransformation(lambda params: (), named)
    with pytest.raises(TypeError, match="GradientTransformationExtraArgs"):
        step(tko.chain(tx), rng=KEYS["new"])
