"""The class of treekit's transformations, which accept raw models and run a core on their arrays."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    runtime_checkable,
)

import optax
from optax import GradientTransformationExtraArgs as _Base

from treekit._base.describe import describe, describe_value
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import has_gradient, is_array, is_array_without_gradient
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._path_mask import WHOLE_TREE

State = TypeVar("State")
U = TypeVar("U")
V_co = TypeVar("V_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)

if TYPE_CHECKING:
    # To type checkers, `GradientTransformation` is `GradientTransformation[Any]`. Python has defaults from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    S = TypeVarWithDefault("S", default=Any)
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


P = ParamSpec("P")
_MADE = "treekit_made"  # the attribute of an `init` that has the parts of its transformation
Core: TypeAlias = optax.GradientTransformationExtraArgs
Apply = Callable[[Any, Any], Any]  # adds updates to params
WholeStep = Callable[[Any, Any, Any, dict[str, Any], Apply], tuple[Any, Any]]


class DeclaringCore(optax.GradientTransformationExtraArgs):
    """A core that declares what its two functions do not show.

    Both attributes are None after JAX has rebuilt it, since the tuple contains only the two functions.

    Attributes:
        step: the whole step of `MultiSteps`, which does not touch the params if it only accumulates. Takes updates,
            state, params, extra arguments, and a function that adds updates to params; returns new params and a new
            state. `apply_gradients` calls it if `MultiSteps` is outermost.
        freezes: takes the params, and returns whether it trains none of them.
    """

    step: WholeStep | None = None
    freezes: Callable[[Any], bool] | None = None

    def __new__(
        cls, init: Any, update: Any, step: WholeStep | None = None, freezes: Callable[[Any], bool] | None = None
    ) -> "DeclaringCore":
        self = super().__new__(cls, init, update)
        self.step, self.freezes = step, freezes
        return self


def freezes(core: Core, params: Params) -> bool:
    """Whether none of these params can have a gradient, or the core declares that it trains none of them."""
    if not any(map(has_gradient, jtu.tree_leaves(params))):
        return True
    return isinstance(core, DeclaringCore) and core.freezes is not None and core.freezes(params)


if TYPE_CHECKING:  # a class for `pyright --verifytypes`, which does not read Optax, as it has no py.typed
    assert issubclass(_Base, object)


class GradientTransformation(_Base, Generic[State_co]):
    """A transformation that accepts raw models and preserves dtypes, like all that `treekit.optax` returns.

    `init` and `update` are the boundary: they select the leaves that can be parameters, and cast the results. Wrappers
    compose cores, so that a gradient crosses the boundary once, however deeply transformations are nested. `_replace`
    returns one of Optax's transformations, since another `init` or `update` does not belong to the core.

    A function that accepts any optimizer, also one of plain Optax or a `MultiSteps`, annotates it with
    `treekit.typing.TransformationLike`.

    JAX rebuilds it from `init` and `update`, which are its leaves. From the same two functions comes the same
    transformation.

    Attributes:
        core: the transformation inside the boundary, on trees of arrays; None if JAX has rebuilt it from other leaves.
    """

    core: Core | None = None
    _describe: Callable[[], str] | None = None

    if TYPE_CHECKING:  # at run time they are the fields of the named tuple

        @property
        def init(self) -> InitFn[State_co]: ...
        @property
        def update(self) -> UpdateFn[State_co]: ...

    def __new__(
        cls,
        init: InitFn[State_co] | Any,
        update: Callable[..., tuple[Any, State_co]] | Any,
        core: Core | None = None,
        describe: Callable[[], str] | None = None,
    ) -> "GradientTransformation[State_co]":
        """Create one; JAX also calls this when it rebuilds the tuple, with any leaves instead of the two functions."""
        self = super().__new__(cls, init, update)
        if core is None:  # rebuilt: what the tuple does not contain is found where `init` has it
            known = getattr(init, _MADE, None)
            _, core, describe = known if known and known[0] is update else (None, None, describe)
        else:
            setattr(init, _MADE, (update, core, describe))
        self.core = core
        self._describe = describe
        return self

    def __repr__(self) -> str:
        return "GradientTransformation(init, update)" if self._describe is None else self._describe()

    if not TYPE_CHECKING:  # to checkers, the `_replace` of a named tuple returns its own class

        def _replace(self, **functions: object) -> optax.GradientTransformationExtraArgs:
            made = optax.GradientTransformationExtraArgs(**{"init": self.init, "update": self.update, **functions})
            return GradientTransformation(*made) if made == tuple(self) else made

    def described_as(self, describe: Callable[[], str]) -> "GradientTransformation[State_co]":
        """Return the same transformation with the result of `describe` as its `repr`."""
        return GradientTransformation(self.init, self.update, self.core, describe)


def is_ours(x: object) -> TypeGuard[GradientTransformation[Any]]:
    """Whether `x` is one of treekit's transformations."""
    return isinstance(x, GradientTransformation)


def core_of(tx: TransformationLike) -> Core:
    """Return the core of a transformation of treekit, and any other transformation unchanged.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    check_is_transformation(tx)
    tx = without_multi_steps(tx)
    if is_ours(tx) and tx.core is not None:
        return tx.core
    if getattr(tx.update, "__code__", None) == _ZERO_CODE:  # equal after pickling too
        return SET_TO_ZERO
    return optax.with_extra_args_support(cast(optax.GradientTransformation, tx))  # which accepts any class


def without_multi_steps(x: object) -> Any:
    """Return the transformation of a `MultiSteps`, which is not one itself, and anything else unchanged."""
    tx: Any = x
    if not isinstance(tx, optax.MultiSteps):
        return tx
    made = tx.gradient_transformation()  # that of Optax's own drops extra arguments
    return made if is_ours(made) else optax.GradientTransformationExtraArgs(tx.init, tx.update)


def check_is_transformation(tx: object, name: str = "") -> None:
    """Raise a TypeError unless the argument `name` has `init` and `update`."""
    if not _is_transformation(tx):
        advice = (
            "Are the arguments in the right order? Call a function that returns one first: optax.adam(1e-3), not "
            "optax.adam. For a chain with names use optax.named_chain"
        )
        several: Any = tx
        if type(tx) in (list, tuple) and all(map(_is_transformation, several)):
            advice = "To chain several, write optax.chain(*transformations)"
        where = name and f" for {name}"
        raise TypeError(f"expected a gradient transformation{where}, found {describe_value(tx)}. {advice}")


def _is_transformation(x: object) -> bool:
    return not isinstance(x, type) and hasattr(x, "init") and hasattr(x, "update")


def described(factory: Callable[P, GradientTransformation[S]]) -> Callable[P, GradientTransformation[S]]:
    """Decorate a function that returns transformations, so that their `repr` is the call that made them."""

    @functools.wraps(factory)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> GradientTransformation[S]:
        describe = functools.partial(describe_call, factory.__name__, factory, args, kwargs)
        return factory(*args, **kwargs).described_as(describe)

    return wrapped


def describe_call(name: str, f: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Write a call of `f` as a user would, with each argument by name: `adam(learning_rate=0.001)`."""
    signature = inspect.signature(f)
    parts: list[str] = []
    for key, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[key].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            parts += map(_describe_argument, value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            parts += [f"{k}={_describe_argument(x)}" for k, x in value.items()]
        else:
            parts.append(f"{key}={_describe_argument(value)}")
    return f"{name}({', '.join(parts)})"


def _describe_argument(x: object) -> str:
    items: Any = x
    if is_array(x) and x.shape != ():
        return describe(x)
    if isinstance(x, optax.GradientTransformation) and not is_ours(x):
        return "GradientTransformation(init, update)"  # the repr of Optax's own has the addresses of functions
    if type(x) is tuple:
        return "(" + ", ".join(map(_describe_argument, items)) + ("," if len(items) == 1 else "") + ")"
    if type(x) is dict:
        return "{" + ", ".join(f"{key!r}: {_describe_argument(value)}" for key, value in items.items()) + "}"
    text = getattr(x, "__qualname__", None) or describe_value(x)
    return text if len(text) <= _WIDTH or is_ours(x) else text[:_WIDTH] + "…"


_WIDTH = 80  # columns for an argument

_Originals = Mapping[int, tuple[Any, Any]]
_originals: ContextVar[_Originals] = ContextVar("originals", default=MappingProxyType({}))


# Which leaves of `WHOLE_TREE` their classes declare not to be trained.
FROZEN: ContextVar[list[bool] | None] = ContextVar("frozen", default=None)


@contextlib.contextmanager
def showing(originals: _Originals, whole: Params, frozen: list[bool] | None) -> Generator[None]:
    """Let cores know the user's leaves, and masks all of the user's params, while a core runs.

    Args:
        originals: maps the id of an array that cores see to the array and the user's leaf.
        whole: the user's params; the outermost ones count.
        frozen: which of their leaves are declared not to be trained, as `declared_frozen` returns it.
    """
    variables: list[tuple[ContextVar[Any], Any]] = [(_originals, {**_originals.get(), **originals})]
    if WHOLE_TREE.get() is None:
        variables += [(WHOLE_TREE, whole), (FROZEN, frozen)]
    tokens = [(variable, variable.set(value)) for variable, value in variables]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def original(x: object) -> Any:
    """Return the user's leaf that an array represents: a Python number, an integer array, a `jax.Ref`.

    Masks, labels and filters are written for those.
    """
    shown, leaf = _originals.get().get(id(x), (None, None))
    return leaf if shown is x and x is not None else x


def _zero_updates(updates: Updates, state: OptState, params: Params = None, **_: object) -> tuple[Any, Any]:
    """Return a zero for each update, but None for an array of integers, to which no gradient is added."""

    def zero(update: Any, param: object) -> Any:
        return None if is_array_without_gradient(original(param)) else jnp.zeros_like(update)

    likes = params if jtu.tree_structure(params) == jtu.tree_structure(updates) else updates
    return jtu.tree_map(zero, updates, likes), state


# All transformations of `optax.set_to_zero` share this core, so that a partition can tell whether it trains anything.
SET_TO_ZERO: Core = DeclaringCore(optax.set_to_zero().init, _zero_updates, freezes=lambda _: True)
_ZERO_CODE: Any = getattr(optax.set_to_zero().update, "__code__", None)
