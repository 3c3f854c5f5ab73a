"""Everything else of Optax: its own functions, made to take raw models and callable specs."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import optax

from treekit._callable import resolve_spec
from treekit._jax import jtu
from treekit.optax._apply import (
    apply_updates,
    incremental_update,
    periodic_update,
    schedule_free_eval_params,
    tree_map_params,
)
from treekit.optax._apply_if_finite import apply_if_finite
from treekit.optax._inject import bind, inject_hyperparams
from treekit.optax._lbfgs import lbfgs, value_and_grad_from_state
from treekit.optax._masking import masked, partition, resolve_mask
from treekit.optax._monitor import monitor
from treekit.optax._multi_steps import MultiSteps
from treekit.optax._select import hold, is_spec_leaf

# Under whatever name and in whatever module Optax has the one, we have the other.
_OURS: tuple[tuple[Any, Any], ...] = (
    (optax.MultiSteps, MultiSteps),
    (optax.apply_if_finite, apply_if_finite),
    (optax.apply_updates, apply_updates),
    (optax.incremental_update, incremental_update),
    (optax.inject_hyperparams, inject_hyperparams),
    (optax.inject_stateful_hyperparams, inject_hyperparams),
    (optax.lbfgs, lbfgs),
    (optax.masked, masked),
    (optax.monitor, monitor),
    (optax.partition, partition),
    (optax.periodic_update, periodic_update),
    (optax.tree_map_params, tree_map_params),
    (optax.contrib.schedule_free_eval_params, schedule_free_eval_params),
    (optax.value_and_grad_from_state, value_and_grad_from_state),
)

# No transformations of a model's leaves: the params of the one are a pair of what its updates are for, the updates of
# the other are a measurement.
_AS_THEY_ARE: tuple[Any, ...] = (optax.lookahead, optax.measure_with_ema)


def lifted(module: types.ModuleType, name: str) -> Any:
    """The attribute of one of Optax's modules, or what we have for it: a function that makes transformations is lifted.

    Raises:
        AttributeError: Optax has no such name.
    """
    value: Any = getattr(module, name)
    for theirs, ours in _OURS:
        if value is theirs:
            return ours
    if not _is_function(value) or value in _AS_THEY_ARE:
        return value
    signature = inspect.signature(value)
    may_make = signature.return_annotation is signature.empty  # as a few of Optax's factories have it
    return _lift(value) if may_make or "GradientTransformation" in str(signature.return_annotation) else value


def _is_function(x: object) -> bool:
    return isinstance(x, (types.FunctionType, functools.partial))  # nadamw is adamw with an argument bound


@functools.cache
def _lift(factory: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(factory)
    # Where Optax may call an argument, it has to be told whether that is a function.
    called = {name for name, parameter in signature.parameters.items() if "Callable" in str(parameter.annotation)}

    @functools.wraps(factory)
    def lifted_factory(*args: Any, **kwargs: Any) -> Any:
        bound = bind(factory, signature, args, kwargs)
        bound.arguments.update({k: _resolved_later(k, x) for k, x in bound.arguments.items() if k in called})
        made = factory(*bound.args, **bound.kwargs)
        return hold(made) if isinstance(made, optax.GradientTransformation) else made

    return lifted_factory


def _resolved_later(name: str, argument: Any) -> Any:
    """A tree, or what is a function or a tree, as a function that is resolved once it is given the params.

    So Optax's own `callable(mask)` gets it right, and a schedule that is a Partial or a module is called as it was.
    """

    def resolve(*args: Any) -> Any:
        if len(args) != 1:
            return argument(*args)
        return resolve_spec(argument, args[0], is_spec_leaf=is_spec_leaf, name=name)

    if argument is None:
        return None
    if "mask" in name:
        return functools.partial(resolve_mask, argument, name=name)
    return resolve if callable(argument) and not jtu.all_leaves([argument]) else argument


def lifted_module(module: types.ModuleType, name: str) -> types.ModuleType:
    """A module called `name` with every name of one of Optax's."""
    out = types.ModuleType(name, module.__doc__)
    vars(out).update(
        __getattr__=functools.partial(lifted, module),
        __dir__=lambda: dir(module),
        __all__=[name for name in dir(module) if not name.startswith("_")],
    )
    return out
