"""The class of treekit's transformations: one that takes raw models, and the core it runs on arrays alone."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeGuard, cast

import optax
from optax import GradientTransformationExtraArgs as _Base

from treekit._describe import describe, describe_value
from treekit._predicates import is_array
from treekit.optax._types import InitFn, S, TransformationLike, UpdateFn

P = ParamSpec("P")
Core: TypeAlias = optax.GradientTransformationExtraArgs
Apply = Callable[[Any, Any], Any]  # adds updates to params
WholeStep = Callable[[Any, Any, Any, dict[str, Any], Apply], tuple[Any, Any]]


class SteppingCore(optax.GradientTransformationExtraArgs):
    """A core that can do a whole step of its own, so that the params need not be touched by each.

    Attributes:
        step: takes updates, state, params, extra arguments, and a function that adds updates to params; returns new
            params and a new state.
    """

    step: WholeStep | None = None  # as in one that JAX has rebuilt, since the tuple has two functions

    def __new__(cls, init: Any, update: Any, step: WholeStep | None = None) -> "SteppingCore":
        self = super().__new__(cls, init, update)
        self.step = step
        return self


def step_of(core: Core, preserved: Core) -> WholeStep:
    """A whole step of a core: its own, or the update of `preserved`, the core with its dtypes preserved, and an add."""

    def step(updates: Any, state: Any, params: Any, extra: dict[str, Any], apply: Apply) -> tuple[Any, Any]:
        new_updates, new_state = preserved.update(updates, state, params, **extra)
        return apply(params, new_updates), new_state

    return own_step(core) or step


def own_step(core: Core) -> WholeStep | None:
    """The whole step of a core that can do one."""
    return core.step if isinstance(core, SteppingCore) else None


if (
    TYPE_CHECKING
):  # `pyright --verifytypes` does not read Optax, which has no py.typed; this tells it that it is a class
    assert issubclass(_Base, object)


class GradientTransformation(_Base, Generic[S]):
    """A transformation that takes raw models and preserves dtypes, as everything made by `treekit.optax` is.

    `init` and `update` stand at the boundary: they select the leaves that can be parameters, and cast what comes out.
    Wrappers compose the cores, so that a gradient crosses the boundary once, however deep the transformations are
    nested. `_replace` returns one of Optax's own, since another `init` or `update` does not belong to the core.

    Attributes:
        core: what runs between the boundaries, on trees of arrays; None for one that JAX has rebuilt.
        ends_chain: whether nothing that changes the updates may follow it in a chain.
    """

    core: Core | None = None
    ends_chain: bool = False
    _describe: Callable[[], str] | None = None

    if TYPE_CHECKING:  # at run time they are the fields of the named tuple

        @property
        def init(self) -> InitFn[S]: ...
        @property
        def update(self) -> UpdateFn[S]: ...

    def __new__(
        cls,
        init: InitFn[S] | Any,
        update: Callable[..., tuple[Any, S]] | Any,
        core: Core | None = None,
        describe: Callable[[], str] | None = None,
        ends_chain: bool = False,
    ) -> "GradientTransformation[S]":
        """Also called by JAX when it rebuilds the tuple, with anything in the place of the two functions."""
        self = super().__new__(cls, init, update)
        self.core = core
        self._describe = describe
        self.ends_chain = ends_chain
        return self

    def __repr__(self) -> str:
        return "GradientTransformation(init, update)" if self._describe is None else self._describe()

    if not TYPE_CHECKING:  # to checkers, the `_replace` of a named tuple returns its own class

        def _replace(self, **functions: Any) -> optax.GradientTransformationExtraArgs:
            return optax.GradientTransformationExtraArgs(**{"init": self.init, "update": self.update, **functions})

    def described_as(self, describe: Callable[[], str]) -> "GradientTransformation[S]":
        """The same transformation, whose `repr` is what `describe` returns."""
        return GradientTransformation(self.init, self.update, self.core, describe, self.ends_chain)

    def ending_chain(self, ends_chain: bool = True) -> "GradientTransformation[S]":
        """The same transformation, after which nothing may follow in a chain."""
        return GradientTransformation(self.init, self.update, self.core, self._describe, ends_chain)


def is_ours(x: object) -> TypeGuard[GradientTransformation[Any]]:
    """Whether `x` is one of treekit's transformations."""
    return isinstance(x, GradientTransformation)


def core_of(tx: TransformationLike) -> Core:
    """What runs between the boundaries: the core of one of ours, and any other transformation as it is.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    check_is_transformation(tx)
    if is_ours(tx) and tx.core is not None:
        return tx.core
    return optax.with_extra_args_support(cast(optax.GradientTransformation, tx))  # which asks for no class


def check_is_transformation(tx: object, name: str = "") -> None:
    """Raise a TypeError unless the argument `name` has `init` and `update`."""
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise TypeError(
            f"expected a gradient transformation{name and f' for {name}'}, found {describe_value(tx)}. Are the "
            "arguments in their order? A function that makes one must be called first: optax.adam(1e-3), not "
            "optax.adam. A chain of named ones is made by optax.named_chain"
        )


def described(factory: Callable[P, GradientTransformation[S]]) -> Callable[P, GradientTransformation[S]]:
    """Decorate a function that makes transformations: their `repr` is the call that made them."""
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> GradientTransformation[S]:
        describe = functools.partial(describe_call, factory.__name__, signature, args, kwargs)
        return factory(*args, **kwargs).described_as(describe)

    return wrapped


def describe_call(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A call as a user would write it, with each argument by name: `adam(learning_rate=0.001)`."""
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


def _describe_argument(x: Any) -> str:
    items: Any = x
    if is_array(x) and x.shape != ():
        return describe(x)
    if isinstance(x, optax.GradientTransformation) and not is_ours(x):
        return "GradientTransformation(init, update)"  # one of Optax's own, which prints the addresses of functions
    if _is_exactly(x, tuple):
        return "(" + ", ".join(map(_describe_argument, items)) + ("," if len(items) == 1 else "") + ")"
    if _is_exactly(x, dict):
        return "{" + ", ".join(f"{key!r}: {_describe_argument(value)}" for key, value in items.items()) + "}"
    text = getattr(x, "__qualname__", None) or describe_value(x)
    return text if len(text) <= _WIDTH or is_ours(x) else text[:_WIDTH] + "…"


def _is_exactly(x: object, kind: type[object]) -> bool:
    return type(x) is kind


_WIDTH = 80  # of an argument
