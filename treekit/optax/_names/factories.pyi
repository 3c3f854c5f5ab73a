"""Types of Optax's factories: their own parameters, and a treekit transformation as result."""

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeAlias

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

class Chain(Protocol):
    """`chain` accepts any transformation, a `MultiSteps` too."""

    def __call__(self, *args: TransformationLike) -> GradientTransformation[ChainState]: ...

class NamedChain(Protocol):
    def __call__(self, *transforms: tuple[str, TransformationLike]) -> GradientTransformation[Any]: ...

# Where the state depends on the arguments, or is one of Optax's own classes.
def any_state(factory: Callable[P, object]) -> Callable[P, GradientTransformation[Any]]: ...
def chained(factory: Callable[P, object]) -> Callable[P, GradientTransformation[ChainState]]: ...
def chain_like(factory: object) -> Chain: ...
def named_chain_like(factory: object) -> NamedChain: ...
def adam_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[AdamState]]: ...
def adamw_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[AdamWState]]: ...
def sgd_like(factory: Callable[P, object]) -> Callable[P, GradientTransformation[SgdState]]: ...
