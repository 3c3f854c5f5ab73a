"""Optax's own functions, such as `optax.adam` and `optax.chain`, made to take raw models and callable specs."""

import functools
import inspect
import itertools
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
from treekit.optax._boundary import normalize
from treekit.optax._chain import with_last_step
from treekit.optax._conditionally import conditionally_mask, conditionally_transform
from treekit.optax._dtypes import preserve_dtypes
from treekit.optax._inject import bind, inject_hyperparams
from treekit.optax._lbfgs import lbfgs, value_and_grad_from_state
from treekit.optax._masking import freeze, masked, partition, selective_transform
from treekit.optax._monitor import monitor
from treekit.optax._multi_steps import MultiSteps
from treekit.optax._selection import is_spec_leaf
from treekit.optax._specs import resolve_mask
from treekit.optax._transformation import Core, GradientTransformation, check_is_transformation, describe_call, is_ours
from treekit.optax._trees import ON_TREES, on_parameters

# Under whatever name and in whatever module Optax has the one, we have the other.
REPLACEMENTS: tuple[tuple[Any, Any], ...] = (
    (optax.MultiSteps, MultiSteps),
    (optax.apply_if_finite, apply_if_finite),
    (optax.apply_updates, apply_updates),
    (optax.conditionally_mask, conditionally_mask),
    (optax.conditionally_transform, conditionally_transform),
    (optax.freeze, freeze),
    (optax.incremental_update, incremental_update),
    (optax.inject_hyperparams, inject_hyperparams),
    (optax.inject_stateful_hyperparams, inject_hyperparams),
    (optax.lbfgs, lbfgs),
    (optax.masked, masked),
    (optax.monitor, monitor),
    (optax.partition, partition),
    (optax.periodic_update, periodic_update),
    (optax.selective_transform, selective_transform),
    (optax.tree_map_params, tree_map_params),
    (optax.contrib.schedule_free_eval_params, schedule_free_eval_params),
    (optax.value_and_grad_from_state, value_and_grad_from_state),
)

# Not transformations of a model's leaves: the params of the one are a pair of what its updates are for, the updates of
# the other are a measurement.
NOT_WRAPPED: tuple[Any, ...] = (optax.lookahead, optax.measure_with_ema)


def wrap_attribute(module: types.ModuleType, name: str) -> Any:
    """The attribute of one of Optax's modules, or what we have for it.

    A function that makes a transformation is wrapped, and so is one of those that compute on a tree.

    Raises:
        AttributeError: Optax has no such name.
    """
    value: Any = getattr(module, name)
    for theirs, ours in REPLACEMENTS:
        if value is theirs:
            return ours
    if any(value is known for known in NOT_WRAPPED):
        return value
    wrap = on_parameters if any(value is known for known in ON_TREES) else wrap_factory
    if wrap is wrap_factory and not _makes_transformations(value):
        return value
    if value not in _wrapped:
        _wrapped[value] = wrap(value, f"treekit.{module.__name__}", name)
    return _wrapped[value]


_wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}  # by Optax's function, which may stand in several modules


_FUNCTIONS: Any = (types.FunctionType, functools.partial)  # nadamw is adamw with an argument bound


def _makes_transformations(x: object) -> bool:
    if not isinstance(x, _FUNCTIONS):
        return False
    function: Any = x
    returned: Any = inspect.signature(function).return_annotation
    # A few of Optax's factories have no annotation.
    return returned is inspect.Signature.empty or (
        isinstance(returned, type) and issubclass(returned, optax.GradientTransformation)
    )


def wrap_factory(factory: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """A function that makes transformations, whose transformations take raw models.

    Args:
        factory: one of Optax's functions.
        module: where it can be imported from, for pickle.
        name: its name there.
    """
    signature = inspect.signature(factory)

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = bind(factory, signature, args, kwargs)
        for key, value in bound.arguments.items():
            _check_argument(name, signature.parameters[key], value)
            bound.arguments[key] = _wrap_argument(key, value)
        made = factory(*bound.args, **bound.kwargs)
        if not isinstance(made, optax.GradientTransformation):
            return made
        describe = functools.partial(describe_call, name, signature, args, kwargs)
        if factory not in (optax.chain, optax.named_chain) or not args:
            return normalize(made).described_as(describe)
        ends = _check_last(name, [x if factory is optax.chain else x[1] for x in args])
        return normalize(_with_last_step(factory, made, args, bound.args)).described_as(describe).ending_chain(ends)

    wrapped.__module__, wrapped.__name__, wrapped.__qualname__ = module, name, name
    return wrapped


def _check_last(chain: str, links: list[Any]) -> bool:
    """Raise a ValueError where something follows a link that has to be the last; return whether there is such a link.

    Several of them may follow each other, since they leave the updates as they are.
    """
    ends = [is_ours(link) and link.ends_chain for link in links]
    for i, (is_last, is_next_last) in enumerate(itertools.pairwise(ends)):
        if is_last and not is_next_last:
            raise ValueError(
                f"{links[i]!r} is link {i} of {chain}, and {_in_short(links[i + 1])} follows it. It averages the "
                "params that the optimizer gives, so put it last"
            )
    return any(ends)


def _in_short(tx: Any) -> str:
    return repr(tx) if is_ours(tx) else "another transformation"


def _with_last_step(
    make: Callable[..., Any], chain: optax.GradientTransformation, args: tuple[Any, ...], links: tuple[Any, ...]
) -> optax.GradientTransformation:
    """A chain made by `make`, with the whole step of its last link; `links` are `args` as Optax sees them."""
    if make is optax.chain:
        return with_last_step(chain, args[-1], lambda last: make(*links[:-1], last))
    name, tx = args[-1]
    return with_last_step(chain, tx, lambda last: make(*links[:-1], (name, last)))


def _check_argument(factory: str, parameter: inspect.Parameter, value: Any) -> None:
    """Raise a TypeError where one of Optax's functions wants a transformation, and another object is given."""
    if parameter.annotation is optax.GradientTransformation:
        values = enumerate(value) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else [("", value)]
        for i, x in values:
            check_is_transformation(x, f"{parameter.name}{'' if i == '' else f'[{i}]'} of {factory}")


def _wrap_argument(name: str, x: Any) -> Any:
    """An argument of one of Optax's functions as that can use it.

    A transformation of ours is reduced to its core. What may be a function or a tree becomes a function, which decides
    once it is given the params; so Optax's own `callable(mask)` is right.
    """
    if is_ours(x):
        return _link(x)
    if x is not None and name.endswith("mask"):
        return functools.partial(resolve_mask, x, name=name)
    if _is_tuple(x):  # the links of a chain; in a named chain, each with its name
        return tuple(_wrap_argument(name, item) for item in x)
    if callable(x) and not jtu.all_leaves([x]):
        return functools.partial(_call_or_resolve, x, name)
    return x


def _is_tuple(x: object) -> bool:
    return type(x) is tuple


def _call_or_resolve(argument: Any, name: str, *args: Any) -> Any:
    """Call a node that is a schedule, or dimension numbers for each param, as what it is."""
    return argument(*args) if len(args) != 1 else resolve_spec(argument, args[0], is_spec_leaf=is_spec_leaf, name=name)


def _link(tx: GradientTransformation[Any]) -> Core:
    """A transformation inside one of Optax's own functions, such as a link of a chain.

    It runs its core, and crosses the boundary again only where a transformation before it has frozen leaves.
    """
    core = preserve_dtypes(tx)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        is_whole = params is None or jtu.tree_structure(updates) == jtu.tree_structure(params)
        return (core if is_whole else tx).update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(core.init, update)


def wrap_module(module: types.ModuleType, name: str) -> types.ModuleType:
    """A module called `name` with every name of one of Optax's."""
    out = types.ModuleType(name, module.__doc__)
    get, names, public = attributes_of(module)
    vars(out).update(__getattr__=get, __dir__=names, __all__=public)
    return out


def attributes_of(
    module: types.ModuleType,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module with every name of one of Optax's."""
    public = [name for name in dir(module) if not name.startswith("_")]
    return functools.partial(wrap_attribute, module), lambda: dir(module), public
