"""`inject_hyperparams`: store hyperparameters in the state, where you can read and change them while training."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optax
from jax.typing import DTypeLike
from optax.schedules import InjectStatefulHyperparamsState

from treekit._base.describe import describe_value
from treekit._base.dtype import dtype_of, issubdtype, strengthen
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_inexact_array, is_narrow
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._round import widen
from treekit.optax._kernel.argument_kind import check_argument
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.slot import slots_of
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of, describe_call
from treekit.optax._wrappers.inject_arguments import Arguments


def inject_hyperparams(
    inner_factory: Callable[..., TransformationLike],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
    *,
    only: str | Iterable[str] | None = None,
) -> Callable[..., GradientTransformation[InjectStatefulHyperparamsState]]:
    """Store the hyperparameters of an optimizer in its state, without `static_args` for masks and other trees.

    The first of these rules that applies to an argument decides what it is:

    1. static: arguments that `static_args` names, or that `only` does not name; None, bools, strings, classes, dtypes;
       a parameter whose name ends in "mask" or "labels"; a callable that is the parameter's default;
    2. a hyperparameter: a number, except that an int whose default or annotation is int is static;
    3. a schedule: a stateful schedule, or a callable for a parameter that is annotated like Optax's learning rates;
    4. any other callable is asked: it is static if it is a tree that fits the params, or maps the params to such a tree
       (a mask, labels), and a schedule if it maps a step count to one real number; else it is an error;
    5. static: anything else (transformations, tuples of settings).

    What `**kwargs` gathers are arguments too. A schedule is called once in `init` and once in each update. If its
    parameter is not annotated and it returns a Python number, `init` also calls it with the params, to see whether it
    is a mask function.

    Args:
        inner_factory: a function of hyperparameters that returns a transformation, such as `optax.adam`.
        static_args: the name, or names, of parameters to pass on unchanged.
        hyperparam_dtype: the dtype in which Python numbers are stored. By default it is float32 at least (float64 for
            float64 params), for ints too, so that any real number can replace a hyperparameter. An array keeps its
            dtype. Numbers stay ints where the parameter takes only ints: its default or annotation is int, or its name
            ends in "key" or "seed".
        only: the name, or names, of the parameters that become hyperparameters, even if they are ints; all others are
            static. By default, every parameter that can.

    Returns:
        A function with the signature of `inner_factory`; the state of the transformation that it returns is an
        `optax.InjectStatefulHyperparamsState`. `treekit.optax.get_hyperparams` and `set_hyperparams` read and change
        its hyperparameters.

    Raises:
        ValueError: `static_args` or `only` names a parameter that `inner_factory` does not have, or both name the same
            parameter.
        TypeError: `inner_factory` is not a function; `static_args` or `only` is not a name, or names; or a learning
            rate is neither a number nor a schedule. Or, raised by `init`: a callable argument is neither a schedule nor
            fits the params, or `only` names an argument that is neither a number nor a schedule. Or, raised by
            `update`: the state was made with a number for an argument that is now a schedule, or the reverse. Each
            message names the argument.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = inject_hyperparams(optax.adamw)(1e-3, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params))
    >>> state = tx.init({"w": jnp.ones((2, 2)), "b": jnp.ones(2)})
    >>> state.hyperparams["learning_rate"], "mask" in state.hyperparams
    (Array(0.001, dtype=float32), False)
    >>> list(inject_hyperparams(optax.adam, only="learning_rate")(1e-3).init(jnp.ones(2)).hyperparams)
    ['learning_rate']
    """
    if not callable(inner_factory):
        raise TypeError(
            f"inner_factory must be a function that returns a transformation, such as optax.adam, not "
            f"optax.adam(1e-3); found {type(inner_factory).__name__}"
        )
    signature = inspect.signature(inner_factory)
    slots = slots_of(signature)
    static = _names_of_parameters("static_args", static_args, signature)
    required = None if only is None else _names_of_parameters("only", only, signature)
    if both := sorted(static & (required or set())):
        raise ValueError(f"`static_args` and `only` both name {', '.join(both)}")

    @functools.wraps(inner_factory)
    def factory(*args: object, **kwargs: object) -> GradientTransformation[InjectStatefulHyperparamsState]:
        bound = bind(inner_factory, signature, args, kwargs)
        bound.apply_defaults()
        name = getattr(inner_factory, "__name__", str(inner_factory))
        for key, value in bound.arguments.items():
            check_argument(value, slots[key], name)
        arguments = Arguments(inner_factory, bound, static, required)
        call = f"inject_hyperparams({name})"
        describe = functools.partial(describe_call, call, signature, args, kwargs)
        return at_boundary(_injected(arguments, hyperparam_dtype)).described_as(describe)

    return factory


def _names_of_parameters(what: str, given: Any, signature: inspect.Signature) -> set[str]:
    is_several = hasattr(given, "__iter__") and not isinstance(given, str)
    names: list[Any] = list(given) if is_several else [given]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"`{what}` must be the name, or names, of parameters of `inner_factory`, found {describe_value(given)}. "
            "Hyperparameters are arguments of the function that is returned: inject_hyperparams(optax.adamw)(1e-3)"
        )
    takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in signature.parameters.values())
    if not takes_any and not set(names) <= signature.parameters.keys():
        raise ValueError(
            f"`{what}` must specify a subset of `inner_factory`'s parameters. "
            f"Given `{what}`: {sorted(names)}. `inner_factory` parameters: {sorted(signature.parameters)}"
        )
    return set(names)


def bind(
    f: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call by name, or raise the error that `f` raises for them, which names `f`."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        f(*args, **kwargs)
        raise


def _injected(arguments: Arguments, hyperparam_dtype: object) -> Core:
    def make(hyperparams: dict[str, Any], params: Params) -> Core:
        tx = arguments.make(hyperparams)
        core = core_of(tx)
        return _in_float32(core) if any(map(_is_float8, jtu.tree_leaves(params))) else core

    def as_hyperparams(values: dict[str, Any], dtype: object) -> dict[str, Any]:
        return {name: jnp.asarray(x, arguments.stored_dtype(name, x, dtype)) for name, x in values.items()}

    def init(params: Params) -> optax.InjectStatefulHyperparamsState:
        schedules, numbers = arguments.sort(params)
        dtype = _float_dtype(hyperparam_dtype, params)
        states = {name: jtu.tree_map(strengthen, x.schedule.init()) for name, x in schedules.items()}
        scheduled = {name: x.schedule(states[name]) if x.first is None else x.first for name, x in schedules.items()}
        hyperparams = as_hyperparams({**numbers, **scheduled}, dtype)
        inner_state = make(hyperparams, params).init(params)
        return optax.InjectStatefulHyperparamsState(jnp.zeros([], jnp.int32), hyperparams, states, inner_state)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        schedules = arguments.schedules_of(state)
        given = updates if params is None else params
        dtype = _float_dtype(hyperparam_dtype, given)
        scheduled = {name: schedule(state.hyperparams_states[name], **extra) for name, schedule in schedules.items()}
        hyperparams = as_hyperparams({**state.hyperparams, **scheduled}, dtype)
        # An int that the user put into the state stays one there, since scan and cond need a state of equal dtypes.
        stored = {
            name: hyperparams[name] if name in scheduled else _unless_int(state.hyperparams[name], hyperparams[name])
            for name in hyperparams
        }
        states = {name: s.update(state.hyperparams_states[name], **extra) for name, s in schedules.items()}
        inner = make(hyperparams, given)
        updates, inner_state = inner.update(updates, state.inner_state, params, **extra)
        count = optax.safe_increment(state.count)
        return updates, optax.InjectStatefulHyperparamsState(count, stored, states, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _unless_int(old: object, new: Any) -> Any:
    return new if issubdtype(dtype_of(old), jnp.inexact) else strengthen(old)


def _is_float8(x: Any) -> bool:
    return is_narrow(x) and x.dtype.itemsize == 1


def _in_float32(inner: Core) -> Core:
    """Return a core that computes in float32, since JAX does not multiply a float8 by another dtype."""
    inner_init, inner_update = inner

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        new_updates, new_state = inner_update(widen(updates), widen(state), widen(params), **extra)
        return new_updates, new_state

    return optax.GradientTransformationExtraArgs(inner_init, update)


def _float_dtype(stated: object, params: Params) -> Any:
    """Return the dtype in which Python numbers are stored: float32 at least, since b2 = 0.999 is 1 in bf16."""
    if stated is not None:
        return stated
    wide = any(x.dtype.itemsize // (1 + np.iscomplexobj(x)) > 4 for x in jtu.tree_leaves(params) if is_inexact_array(x))
    return jnp.float64 if wide else jnp.float32
