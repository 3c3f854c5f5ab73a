"""What a factory's signature says is read once for each function, and keeps none of them alive."""

import functools
import gc
import inspect
import weakref
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from tests.optax import cases
from treekit import optax as tko
from treekit.optax._inject import read_signature


class Factory:
    """A callable object, which may not be hashable."""

    def __call__(self, rate: float) -> Any:
        return optax.sgd(rate)


class Unhashable(Factory):
    """One that cannot be the key of a dict."""

    def __eq__(self, other: object) -> bool:
        return self is other


FACTORIES: dict[str, Any] = {
    "of treekit": tko.adamw,
    "of optax": optax.adamw,
    "a partial": optax.nadamw,
    "a lambda": lambda rate: optax.sgd(rate),
    "a bound method": Factory().__call__,
    "an object": Factory(),
    "an unhashable object": Unhashable(),
}


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_it_is_what_inspect_returns(factory: Any) -> None:
    signature, parameters = read_signature(factory)
    assert signature == inspect.signature(factory)
    assert list(parameters) == list(signature.parameters)


def test_treekit_s_function_and_optax_s_are_read_once_together() -> None:
    assert read_signature(tko.adamw) is read_signature(optax.adamw)


def test_one_with_its_own_signature_is_not_read_as_what_it_wraps() -> None:
    @functools.wraps(optax.adamw)
    def factory(rate: float) -> Any:
        return optax.adamw(rate)

    vars(factory)["__signature__"] = inspect.Signature(
        [inspect.Parameter("rate", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    )
    assert list(read_signature(factory)[1]) == ["rate"]
    assert list(tko.inject_hyperparams(factory)(0.1).init(cases.arrays()).hyperparams) == ["rate"]


def test_a_factory_that_was_read_is_freed() -> None:
    array = jnp.ones(2)

    def factory(rate: float) -> Any:
        return optax.chain(optax.sgd(rate), optax.stateless(lambda u, _: u * array))

    tko.inject_hyperparams(factory)(0.1)
    alive = weakref.ref(factory)
    del factory
    gc.collect()
    assert alive() is None
