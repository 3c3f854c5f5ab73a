"""Make Optax's functions, such as `optax.adam` and `optax.chain`, accept raw models and callable masks and labels."""

import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

import jax
import optax

from treekit._base.describe import with_article
from treekit._base.dtype import as_array, resolve_array
from treekit._base.jax import jtu
from treekit._base.predicates import is_inexact_parameter, is_parameter, is_truly_callable
from treekit._base.types import OptState, Params, Updates
from treekit._codes import is_codes
from treekit._filter import combine, partition
from treekit._resolve_spec import resolve_spec
from treekit.optax._average import schedule_free_eval_params
from treekit.optax._boundary import at_boundary, normalize
from treekit.optax._hyperparams import tree_set
from treekit.optax._inject import (
    PLAIN_NUMBERS,
    Parameter,
    bind,
    call_schedule,
    check_argument,
    inject_hyperparams,
    read_signature,
)
from treekit.optax._select import is_spec_leaf, resolve_mask
from treekit.optax._transformation import (
    Core,
    GradientTransformation,
    core_of,
    describe_call,
    is_ours,
    without_multi_steps,
)

# Wherever Optax has the function on the left, under any name, treekit has the one on the right. `replace` adds those
# that `__init__` imports.
REPLACEMENTS: list[tuple[Any, Any]] = [
    (optax.inject_stateful_hyperparams, inject_hyperparams),
    (optax.tree.set, tree_set),
    (optax.contrib.schedule_free_eval_params, schedule_free_eval_params),
]


def replace(ours: Mapping[str, object]) -> None:
    """Add the functions and classes of treekit to which Optax has one of the same name."""
    REPLACEMENTS.extend((getattr(optax, name), x) for name, x in ours.items() if callable(x) and hasattr(optax, name))


# Not transformations of a model's leaves: the params of lookahead are a pair, and the updates of the other are a
# measurement.
NOT_WRAPPED: tuple[Any, ...] = (optax.lookahead, optax.measure_with_ema)


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
    for theirs, ours in REPLACEMENTS:
        if value is theirs:
            return ours
    if any(value is known for known in NOT_WRAPPED):
        return value
    on_trees = is_on_trees(value)
    if not on_trees and not _makes_transformations(value):
        return value
    if value not in _wrapped:
        wrapped = _wrapped[value] = (apply_to_parameters if on_trees else wrap_factory)(value, name)
        wrapped.__module__, wrapped.__name__, wrapped.__qualname__ = f"treekit.{module.__name__}", name, name
    return _wrapped[value]


_wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}  # by Optax's function, which may be in several modules


_FUNCTIONS: Any = (types.FunctionType, functools.partial)  # nadamw is a partial of adamw


def _makes_transformations(x: object) -> bool:
    if not isinstance(x, _FUNCTIONS):
        return False
    function: Any = x
    returned: Any = inspect.signature(function).return_annotation
    # Some of Optax's factories are not annotated.
    return returned is inspect.Signature.empty or (
        isinstance(returned, type) and issubclass(returned, optax.GradientTransformation)
    )


def wrap_factory(factory: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a function that returns transformations, so that they accept raw models.

    Args:
        factory: one of Optax's functions.
        name: its name there.
    """
    signature, parameters = read_signature(factory)

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = bind(factory, signature, args, kwargs)
        if factory is optax.chain and not args:  # Optax's own fails in init; an empty named_chain works
            raise TypeError("chain needs at least one transformation. To change nothing, use treekit.optax.identity()")
        for key, value in bound.arguments.items():
            says = parameters[key]
            if not (says.takes_numbers and isinstance(value, PLAIN_NUMBERS)):
                check_argument(value, says, key, name)
                bound.arguments[key] = _wrap_argument(value, says, key, name)
        made = factory(*bound.args, **bound.kwargs)
        if not (is_ours(made) or type(made) in _TRANSFORMATIONS):
            return made  # not every function without annotations is a factory: sigmoid_binary_cross_entropy is a loss
        describe = functools.partial(describe_call, name, factory, args, kwargs)
        return normalize(made).described_as(describe)

    return wrapped


_TRANSFORMATIONS = (optax.GradientTransformation, optax.GradientTransformationExtraArgs)


def _wrap_argument(argument: object, says: Parameter, name: str, factory: str) -> Any:
    """Convert an argument to a form that Optax's own functions can use.

    A transformation of treekit becomes its core. An argument that may be a function or a tree becomes a function, which
    decides when it is called with the params; so Optax's own `callable(mask)` is right.
    """
    x = without_multi_steps(argument)
    if is_ours(x):
        return _link(x)
    if says.role == "mask" and x is not None:
        return functools.partial(resolve_mask, x, name=name)
    if _is_tuple(x):  # the links of a chain, in a named chain with their names
        items: Any = x
        return tuple(_wrap_argument(item, says, name, factory) for item in items)
    if callable(x) and not jtu.all_leaves([x]):
        if says.role == "params":
            return functools.partial(_call_or_resolve, x, name)
        if says.role == "schedule" and not is_truly_callable(x):  # a model, perhaps
            return functools.partial(call_schedule, x, functools.partial(_not_a_rate, x, f"{name} of {factory}"))
    return x


def _not_a_rate(x: object, where: str, found: str) -> TypeError:
    return TypeError(f"{where} must be a number or a schedule, found {with_article(type(x).__name__)}. {found}")


def _is_tuple(x: object) -> bool:
    return type(x) is tuple


def _call_or_resolve(argument: Any, name: str, *args: Any) -> Any:
    """Resolve an argument that is called with the params, such as dimension numbers; call other functions."""
    return argument(*args) if len(args) != 1 else resolve_spec(argument, args[0], is_spec_leaf=is_spec_leaf, name=name)


def _link(tx: GradientTransformation[Any]) -> Core:
    """Return a transformation for use inside one of Optax's own functions, such as a link of a chain.

    It runs the core, and crosses the boundary again only if a transformation before it has frozen leaves.
    """
    core = core_of(tx)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> Any:
        is_whole = params is None or jtu.tree_structure(updates) == jtu.tree_structure(params)
        link = core if is_whole else at_boundary(core)
        return link.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(core.init, update)


def wrap_module(module: types.ModuleType, name: str) -> types.ModuleType:
    """Make a module called `name` with every name of one of Optax's modules."""
    # A package without a path: an import of what is private in it must not run Optax's file a second time.
    out = module_from_spec(ModuleSpec(name, None, is_package=True))
    get = functools.partial(wrap_attribute, module)
    public = [name for name in dir(module) if not name.startswith("_")]
    vars(out).update(__doc__=module.__doc__, __getattr__=get, __dir__=lambda: dir(module), __all__=public)
    return out


_OF_TREE = """
    add add_scale allclose batch_shape bias_correction cast cast_like clip conj div dtype full_like max min mul norm
    ones_like random_like real scale size sub sum update_infinity_moment update_moment update_moment_per_elem_norm vdot
    where zeros_like
"""

# The functions of Optax that compute with all leaves of their arguments; the others of optax.tree take states and keys.
ON_TREES: tuple[Callable[..., Any], ...] = (
    optax.global_norm,
    optax.per_example_global_norm_clip,
    optax.per_example_layer_norm_clip,
    *(getattr(optax.tree, name) for name in _OF_TREE.split() if hasattr(optax.tree, name)),
)


def is_on_trees(x: object) -> bool:
    """Whether `x` is one of these functions, or a partial of one, such as `optax.tree_utils.tree_l1_norm`."""
    function = x.func if isinstance(x, functools.partial) else x
    return any(function is known for known in ON_TREES)


def apply_to_parameters(f: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Apply one of these functions to the leaves that can be parameters; other leaves do not count and do not change.

    Python numbers stay such, as in Optax, except in `cast` and `random_like`, which Optax has for arrays only.

    A result that consists of a tree and something else, such as the number of clipped examples, has None for them.
    `random_like` draws normal numbers by default, so integers and bools do not change either.

    Args:
        f: the function.
        name: its name there.
    """

    signature = inspect.signature(f)
    as_leaf = as_array if f in (optax.tree.cast, optax.tree.random_like) else resolve_array

    @functools.wraps(f)
    def wrapped(*args: object, **kwargs: object) -> Any:
        bound = bind(f, signature, args, kwargs)
        given = bound.arguments
        samples_normal = given.get("dtype") is None and given.get("sampler", jax.random.normal) is jax.random.normal
        draws_normal = f is optax.tree.random_like and samples_normal
        is_counted = is_inexact_parameter if draws_normal else is_parameter
        # For each tree, its structure without the leaves left out, and those leaves.
        left_out: list[tuple[Any, Any]] = []

        def parameters(x: object) -> Any:
            if jtu.all_leaves([x]):  # an array, or another argument: a dtype, a decay, a sampler
                return x
            if any(map(is_codes, jtu.tree_leaves(x, is_leaf=is_codes))):
                raise TypeError(f"{name} received 8-bit codes, which are not numbers: convert them with decode_state")
            kept, others = partition(x, is_counted)
            left_out.append((jtu.tree_structure(kept), others))
            return jtu.tree_map(as_leaf, kept)

        bound.arguments = OrderedDict((name, x if name == "shape" else parameters(x)) for name, x in given.items())
        result = f(*bound.args, **bound.kwargs)
        structure = jtu.tree_structure(result)
        return next((combine(result, others) for kept, others in left_out if kept == structure), result)

    return wrapped
