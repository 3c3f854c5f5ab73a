"""Which extra arguments does an optimizer take? The signatures of the functions inside say it.

Optax passes every extra argument to every transformation, so that one loop fits all optimizers, and one that nothing
takes is ignored. A PRNG key is never meant so.
"""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax

from treekit._base.dtype import dtype_of, is_prng_key, issubdtype
from treekit._base.functions import captured_by, closure_of, parts_of
from treekit._base.jax import jtu
from treekit._base.states import is_known_code
from treekit._base.tree import reachable
from treekit._base.types import PyTree


def check_keys_are_taken(update: Callable[..., Any], extra: dict[str, Any]) -> None:
    """Raise a TypeError if an extra argument is a PRNG key, and nothing that runs in an update takes its name.

    Args:
        update: the `update` of a core.
        extra: the extra arguments, of which a function, such as the loss of a line search, takes others.
    """
    for name, x in extra.items():
        if _are_keys(name, x) and not is_taken(name, [update, extra]):
            raise TypeError(
                f"update received a PRNG key as {name!r}, and nothing in this optimizer takes an argument of that "
                "name. To round params of 16 bits stochastically, pass key= to apply_gradients, or to apply_updates; "
                "in nnx.Optimizer, wrap the optimizer in training.in_nnx. "
                f"A transformation of yours takes {name} as a keyword of its update, and is an "
                "optax.GradientTransformationExtraArgs"
            )


def _are_keys(name: str, x: PyTree) -> bool:
    """Whether an argument consists of PRNG keys; those of the old style are plain arrays, and only a name tells."""
    may_be_old = name.endswith(("key", "rng"))
    leaves = jtu.tree_leaves(x)
    return bool(leaves) and all(
        is_prng_key(leaf) if may_be_old else issubdtype(dtype_of(leaf), jax.dtypes.prng_key) for leaf in leaves
    )


def is_taken(name: str, roots: list[Any]) -> bool:
    """Whether a function that can be reached from these objects takes an argument of this name."""
    return any(_takes(x, name) for x in reachable(roots, _parts))


def _takes(x: Any, name: str) -> bool:
    """Whether an object takes an argument of this name: the first row that holds.

    | an object | takes it |
    |---|---|
    | what calls a factory of the user's in each update | it may, since what that returns is not known |
    | a function with a parameter of this name | yes |
    | a function of the user's with `**extra` | yes; those of Optax and treekit only pass it on |
    | anything else | no |
    """
    factory = _factory_in(x)
    if factory is not None and not _is_known(factory):
        return True
    if not callable(x) or isinstance(x, type):
        return False
    parameters = _parameters(x)
    return name in parameters or (inspect.Parameter.VAR_KEYWORD in parameters.values() and not _is_known(x))


def _factory_in(x: Any) -> Any:
    """Return the factory that an update of Optax's `inject_hyperparams`, or a `Call` of treekit's, calls; or None."""
    if isinstance(x, types.FunctionType):
        return closure_of(x).get("inner_factory")
    return getattr(x, "factory", None) if is_known_code(type(x)) else None


def _parameters(function: Any) -> dict[str, Any]:
    """Return the kind of each parameter of a function; of some that are written in C, they are not known."""
    with contextlib.suppress(TypeError, ValueError):
        return {name: x.kind for name, x in inspect.signature(function, follow_wrapped=False).parameters.items()}
    return {}


def _is_known(function: Any) -> bool:
    """Whether a function, or the class of a callable object, is Optax's or treekit's; nadamw is a partial of adamw."""
    return is_known_code(function.func if isinstance(function, functools.partial) else function)


def _parts(x: Any) -> list[Any]:
    """Return the parts of an object that may be, or lead to, functions."""
    if isinstance(x, (type, jax.Array)) or getattr(x, "__qualname__", "") == _DROPS_EXTRA:  # a tracer has any attribute
        return []
    if isinstance(x, types.FunctionType) and hasattr(x, "__wrapped__"):
        return captured_by(x)  # not what a decorator closes over, which may lead anywhere
    if is_known_code(type(x)):
        return [*parts_of(x), *getattr(x, "__dict__", {}).values()]
    # Of a stateful schedule; of a callable of another class that JAX or a decorator has made.
    others = [getattr(x, name) for name in ("update", "__wrapped__") if callable(x) and hasattr(x, name)]
    return [*parts_of(x), *others]


_DROPS_EXTRA = "with_extra_args_support.<locals>.update"  # Optax's, of a transformation without extra arguments
