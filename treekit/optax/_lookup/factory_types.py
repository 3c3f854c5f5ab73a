"""Types of Optax's factories for type checkers: their own parameters, and a treekit transformation as result.

At run time these functions do nothing: `_wrap_optax.py` makes the factories that they describe.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeAlias, cast, runtime_checkable

import optax

from treekit._base.types import TransformationLike
from treekit.optax._kernel.transformation import GradientTransformation

P = ParamSpec("P")

# The state of a chain is a tuple with one state for each of its transformations.
ChainState: TypeAlias = tuple[Any, ...]
RateState: TypeAlias = optax.EmptyState | optax.ScaleByScheduleState
AdamState: TypeAlias = tuple[optax.ScaleByAdamState, RateState]
AdamWState: TypeAlias = tuple[optax.ScaleByAdamState, optax.EmptyState | optax.MaskedState, RateState]
SgdState: TypeAlias = tuple[optax.EmptyState | optax.TraceState, RateState]


def any_state(factory: Callable[P, object]) -> Callable[P, GradientTransformation[Any]]:
    """Type of a factory whose state depends on its arguments, or is one of Optax's own state classes."""
    return cast(Callable[P, GradientTransformation[Any]], factory)


def chained(factory: Callable[P, object]) -> Callable[P, GradientTransformation[ChainState]]:
    """Type of a factory that makes a chain."""
    return any_state(factory)


@runtime_checkable
class Chain(Protocol):
    """Type of `chain`, which accepts any transformation, a `MultiSteps` too."""

    def __call__(self, *args: TransformationLike) -> GradientTransformation[ChainState]: ...


@runtime_checkable
class NamedChain(Protocol):
    """Type of `named_chain`."""

    def __call__(self, *transforms: tuple[str, TransformationLike]) -> GradientTransformation[Any]: ...


def chain_like(factory: object) -> Chain:
    """Type of `chain`."""
    return cast(Chain, factory)


def named_chain_like(factory: object) -> NamedChain:
    """Type of `named_chain`."""
    return cast(NamedChain, factory)


def adam_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[AdamState]]:
    """Type of `adam`."""
    return any_state(factory)


def adamw_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[AdamWState]]:
    """Type of `adamw`."""
    return any_state(factory)


def sgd_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[SgdState]]:
    """Type of `sgd`."""
    return any_state(factory)
