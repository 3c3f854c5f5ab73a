"""Which function does a name of Optax give? Its own, or one that accepts raw models, callable masks and labels."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import optax

from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._mirror.ours import OURS
from treekit.optax._mirror.tree_functions import apply_to_parameters, is_on_trees
from treekit.optax._wrappers.call import ORIGINALS, bind, converted
from treekit.optax._wrappers.numbers import check_numbers

_WRAPPED: dict[Any, Any] = {}  # treekit's replacement for each function of Optax that has been looked up


def wrap(value: Any, name: str, module: str) -> Any:
    """Return treekit's replacement for a value of Optax; most values stay as they are.

    Functions that return transformations are wrapped, and so are functions that compute on trees.

    Args:
        value: the value of Optax.
        name: its name in Optax.
        module: the name of the module of treekit that has it.
    """
    with contextlib.suppress(TypeError):  # it cannot be a key
        known = OURS.get(value, _WRAPPED.get(value))
        if known is not None:
            return known
    on_trees = is_on_trees(value)
    if not (on_trees or _makes_transformations(value)):
        return value
    wrapped = _WRAPPED[value] = (apply_to_parameters if on_trees else wrap_factory)(value, name)
    wrapped.__module__, wrapped.__name__, wrapped.__qualname__ = module, name, name  # by which it is pickled
    return wrapped


def _makes_transformations(x: object) -> bool:
    if not isinstance(x, _FUNCTIONS):
        return False
    function: Any = x
    returned: Any = inspect.signature(function).return_annotation
    # Some of Optax's factories are not annotated.
    return returned is inspect.Signature.empty or (
        isinstance(returned, type) and issubclass(returned, optax.GradientTransformation)
    )


_FUNCTIONS: Any = (types.FunctionType, functools.partial)  # nadamw is a partial of adamw


def wrap_factory(factory: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a function that returns transformations, so that they accept raw models.

    Args:
        factory: one of Optax's functions.
        name: its name there.
    """

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = bind(factory, name, args, kwargs, is_of_optax=True)
        check_numbers(call.arguments, call.parameters, name, schedules=False)
        made: Any = converted(call).make()
        # Not every function without annotations is a factory: `sigmoid_binary_cross_entropy` is a loss.
        is_transformation = type(made) in (optax.GradientTransformation, optax.GradientTransformationExtraArgs)
        return at_boundary(made) if is_transformation else made

    ORIGINALS[wrapped] = factory
    return wrapped
