"""Everything else of Optax: its own functions, made to take raw models and callable specs."""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import optax

from treekit._callable import resolve_spec
from treekit._filter import is_array
from treekit._jax import jtu
from treekit.optax._select import hold

# Its params are a pair of what its updates are for, so it is no transformation of a model's leaves.
_AS_IT_IS = {"lookahead"}


def lifted(module: ModuleType, name: str) -> Any:
    """The attribute of one of Optax's modules; a function that returns transformations is lifted.

    Raises:
        AttributeError: Optax has no such name.
    """
    value = getattr(module, name)
    if not inspect.isfunction(value) or name in _AS_IT_IS:
        return value
    annotation = inspect.signature(value).return_annotation  # a few of Optax's factories have none
    makes = annotation is inspect.Signature.empty or "GradientTransformation" in str(annotation)
    return _lift(value) if makes else value


@functools.cache
def _lift(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def lifted_factory(*args: Any, **kwargs: Any) -> Any:
        result = factory(*map(_as_function, args), **{name: _as_function(x) for name, x in kwargs.items()})
        return hold(result) if isinstance(result, optax.GradientTransformation) else result

    return lifted_factory


def _as_function(argument: Any) -> Any:
    """A callable tree as a function that says whether it is the tree or the function, once it is given the params.

    So Optax's own `callable(mask)` gets it right, and a schedule that is a Partial or a module is called as it was.
    """
    if not callable(argument) or jtu.all_leaves([argument]):
        return argument

    def resolve(params: Any) -> Any:
        return resolve_spec(argument, params, is_spec_leaf=_is_spec_leaf, name="a callable tree among the arguments")

    return resolve


def _is_spec_leaf(x: Any) -> bool:
    """Bools, labels, dimension numbers: whatever Optax's masks and labels are made of, it is no array."""
    return not is_array(x) and not callable(x) and (jtu.all_leaves([x]) or _is_dimension_numbers(x))


def _is_dimension_numbers(x: Any) -> bool:
    return type(x).__name__.endswith("DimensionNumbers")
