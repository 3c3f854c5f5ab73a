"""Which function does a name of Optax give? Its own, or one that accepts raw models, callable masks and labels."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

import optax

from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.releases import existing
from treekit.optax._mirror.tree_functions import apply_to_parameters, is_on_trees
from treekit.optax._wrappers.factories import ORIGINALS, OptaxCall

# Wherever Optax has the key, under any name and in any module, treekit has the value. Two stay as they are: the params
# of `lookahead` are a pair of trees, and the updates of `measure_with_ema` a measurement.
OURS: dict[Any, Any] = {x: x for x in existing(optax, "lookahead", "measure_with_ema")}
_WRAPPED: dict[Any, Any] = {}  # the same for what is wrapped when it is first looked up


def replace(ours: Mapping[str, object], others: Mapping[Any, Any]) -> None:
    """Give the functions and classes of treekit instead of Optax's.

    Args:
        ours: by name; those to which Optax has one of the same name count.
        others: by the function of Optax.
    """
    for module in (optax, optax.transforms):  # Optax 0.2.5 has some only in the second
        OURS.update({their: x for name, x in ours.items() if callable(x) for their in existing(module, name)})
    OURS.update(others)


def wrap_attribute(module: types.ModuleType, name: str) -> Any:
    """Return an attribute of one of Optax's modules, or its replacement.

    Functions that return transformations are wrapped, and so are functions that compute on trees.

    Raises:
        AttributeError: Optax does not have this name.
    """
    try:
        value: Any = getattr(module, name)
    except AttributeError:  # which Python completes with the nearest name
        message = f"module 'treekit.{module.__name__}' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=module) from None
    with contextlib.suppress(KeyError, TypeError):  # it is new, or cannot be a key
        return OURS[value] if value in OURS else _WRAPPED[value]
    on_trees = is_on_trees(value)
    if not (on_trees or _makes_transformations(value)):
        return value
    wrapped = _WRAPPED[value] = (apply_to_parameters if on_trees else wrap_factory)(value, name)
    wrapped.__module__, wrapped.__name__, wrapped.__qualname__ = f"treekit.{module.__name__}", name, name
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
        call = OptaxCall(factory, name, args, kwargs)
        call.check_numbers(schedules=False)
        made: Any = call.make({})
        # Not every function without annotations is a factory: `sigmoid_binary_cross_entropy` is a loss.
        is_transformation = type(made) in (optax.GradientTransformation, optax.GradientTransformationExtraArgs)
        return at_boundary(made) if is_transformation else made

    ORIGINALS[wrapped] = factory
    return wrapped


def wrap_module(module: types.ModuleType, name: str) -> types.ModuleType:
    """Make a module called `name` with every name of one of Optax's modules."""
    # A package without a path: an import of what is private in it must not run Optax's file a second time.
    out = module_from_spec(ModuleSpec(name, None, is_package=True))
    get = functools.partial(wrap_attribute, module)
    public = [name for name in dir(module) if not name.startswith("_")]
    vars(out).update(__doc__=module.__doc__, __getattr__=get, __dir__=lambda: dir(module), __all__=public)
    return out
