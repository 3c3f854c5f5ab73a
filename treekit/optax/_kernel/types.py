"""The types of transformations and of their functions, for type checkers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeVar, runtime_checkable

State = TypeVar("State")  # of a `TransformationOf`
S_co = TypeVar("S_co", covariant=True)  # the state that an `InitFn` returns
U = TypeVar("U")  # updates, or params
V_co = TypeVar("V_co", covariant=True)  # the value of a `ValueAndGradFn`

if TYPE_CHECKING:
    # To type checkers, `GradientTransformation` is `GradientTransformation[Any]`. Python has defaults from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    S = TypeVarWithDefault("S", default=Any)  # the state that an `UpdateFn` takes and returns
    # The parameter of `GradientTransformation`. Covariant, although `update` takes a state, since mypy would otherwise
    # infer a dict of objects for a dict of transformations of several kinds.
    State_co = TypeVarWithDefault("State_co", default=Any, covariant=True)
else:
    S = TypeVar("S")
    State_co = TypeVar("State_co", covariant=True)


@runtime_checkable
class TransformationOf(Protocol[State]):
    """A `TransformationLike` whose state has this type; invariant, so that the state of another one is an error."""

    @property
    def init(self) -> Callable[[Any], State]: ...
    @property
    def update(self) -> Callable[Concatenate[Any, State, ...], tuple[Any, State]]: ...


@runtime_checkable
class InitFn(Protocol[S_co]):
    """The `init` of a transformation, which takes params, or a raw model, and returns a state."""

    def __call__(self, params: Any) -> S_co: ...


@runtime_checkable
class UpdateFn(Protocol[S]):
    """The `update` of a transformation, which returns updates like those it receives, and a new state."""

    def __call__(self, updates: U, state: S, params: Any = None, **extra_args: Any) -> tuple[U, S]: ...


@runtime_checkable
class ValueAndGradFn(Protocol[V_co]):
    """What `value_and_grad_from_state` returns: takes params, returns a value and a gradient like the params."""

    def __call__(self, params: U, *args: Any, state: Any, **kwargs: Any) -> tuple[V_co, U]: ...
