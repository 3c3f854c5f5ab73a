"""The type of treekit's transformations, and the *core* that one runs inside its boundary.

A core is a transformation of Optax on trees inside. Its `init` receives params: the arrays that are trained, with holes
for everything else. Its `update` receives

- updates of the same structure, in which a missing gradient is a zero;
- a state that it or `init` returned, into which a user may have put other numbers;
- the params, or None. Without them, integers among the updates are inside too: only params say what is trained.

It returns updates of the same structure, of any dtype, of shapes that can be broadcast to those of the params, and None
for no update; and a state of the structure and shapes of the one before, of any dtype. `preserve` says who casts them.

Closures. Equinox's `closure_to_pytree`, which Optimistix applies to optimizers, follows `init` and `update` into all
that they close over, to find the arrays among hyperparameters. So, in every core:

1. `init` closes over the `init` inside and not over its core, which leads to `update` too: otherwise each
   wrapper would reach `update` twice, and the number of paths would double with each level.
2. A tree that is not for arithmetic, such as a mask, is in an object (`MaskFunction`), not in a closure, of which it
   would make a tree.

`tests/optax/whole/test_ecosystem.py` counts the paths.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeGuard

import optax
from optax import GradientTransformationExtraArgs as _Base

from treekit._text.describe import describe_value
from treekit.optax._kernel.types import InitFn, State_co, UpdateFn

Core: TypeAlias = optax.GradientTransformationExtraArgs
# The `update` and the core of each `init` that treekit has made. Not an attribute of the function, which
# `functools.wraps` and `jax.jit` would copy to a function of the user's own.
_CORES: weakref.WeakKeyDictionary[Callable[..., Any], tuple[Callable[..., Any], Core]] = weakref.WeakKeyDictionary()


if TYPE_CHECKING:  # a class for `pyright --verifytypes`, which does not read Optax, as it has no py.typed
    assert issubclass(_Base, object)


class GradientTransformation(_Base, Generic[State_co]):
    """A transformation that accepts raw models and preserves dtypes, like all that `treekit.optax` returns.

    It is one of Optax's, of two functions. Inside, it runs a *core*, which sees only the arrays that are trained. The
    core is found by the function `init`, so a transformation that JAX has rebuilt still has it. Wrappers compose
    cores: a gradient crosses the boundary once, however deeply transformations are nested.

    A function that accepts any optimizer, also one of plain Optax or a `MultiSteps`, annotates it with
    `treekit.typing.TransformationLike`.
    """

    if TYPE_CHECKING:  # at run time they are the fields of the named tuple

        @property
        def init(self) -> InitFn[State_co]: ...
        @property
        def update(self) -> UpdateFn[State_co]: ...


def with_core(init: Callable[..., Any], update: Callable[..., Any], core: Core) -> GradientTransformation[Any]:
    """Return a transformation of treekit that runs this core."""
    init.__qualname__, update.__qualname__ = "init", "update"  # which Python's errors of missing arguments show
    _CORES[init] = update, core
    make: Any = GradientTransformation
    out: GradientTransformation[Any] = make(init, update)
    return out


def is_own(tx: object) -> TypeGuard[GradientTransformation[Any]]:
    """Whether `tx` is a transformation of treekit, and of its class."""
    return isinstance(tx, GradientTransformation) and own_core(tx) is not None


def own_core(tx: Any) -> Core | None:
    """Return the core of a transformation of treekit; None for any other, also one with another `init` or `update`."""
    init: Any = getattr(tx, "init", None)
    with contextlib.suppress(KeyError, TypeError):  # another one's `init`, which perhaps cannot be a key
        update, core = _CORES[init]
        return core if update is getattr(tx, "update", None) else None
    return None


def core_of(tx: object, name: str = "") -> Core:
    """Return the core of a transformation of treekit, and any other transformation unchanged.

    Args:
        tx: a transformation, or a `MultiSteps`, which is not one itself.
        name: the argument that it is, for the error.

    Raises:
        TypeError: `tx` is not a transformation.
    """
    given: Any = tx
    core = own_core(tx)
    if core is not None:
        return core
    if isinstance(tx, optax.MultiSteps):
        made = own_core(given.gradient_transformation())
        # That of Optax's own `MultiSteps` drops extra arguments, and its methods take them.
        return made or optax.GradientTransformationExtraArgs(given.init, given.update)
    if not _is_transformation(tx):
        where = name and f" for {name}"
        advice = (
            "Are the arguments in the right order? Pass optax.adam(1e-3), not optax.adam; and chain several, with "
            "optax.chain(*transformations)"
        )
        if tx is None:
            advice = "To freeze, pass optax.set_to_zero(); to leave updates as they are, optax.identity()"
        raise TypeError(f"expected a gradient transformation{where}, found {describe_value(tx)}. {advice}")
    return optax.with_extra_args_support(given)


def _is_transformation(x: object) -> bool:
    return not isinstance(x, type) and hasattr(x, "init") and hasattr(x, "update")
