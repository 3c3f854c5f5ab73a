"""inject_hyperparams: hyperparameters in the state, where code can read and change them while training."""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax

from treekit._callable import is_truly_callable, resolve_spec
from treekit._describe import describe_error
from treekit._dtype import dtype_of, is_weak, strong
from treekit._filter import is_array, is_inexact_array
from treekit._jax import jnp, jtu
from treekit.optax._select import hold, is_spec_leaf, select_leaves


def inject_hyperparams(
    inner_factory: Callable[..., optax.GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any = None,
) -> Callable[..., optax.GradientTransformationExtraArgs]:
    """`optax.inject_hyperparams` that needs no `static_args` for what is no schedule.

    Each argument is, in this order:

    1. static: what `static_args` names; None, bools, strings, classes, dtypes; a callable that is the parameter's
       default; a tree that fits the params, or a callable that maps the params to a tree fitting them (a mask, labels);
    2. a schedule: a stateful schedule, or a callable that maps a step count to one real number;
    3. a hyperparameter: a number, but an int whose default or annotation is int is static;
    4. static, if it is no callable (transformations, tuples of settings); else an error.

    Args:
        inner_factory: makes the transformation from hyperparameters.
        static_args: a name, or several, of parameters to hand on as they are.
        hyperparam_dtype: the dtype of the floating hyperparameters. By default numbers without a dtype of their own are
            held in float32 at least (float64 for float64 params), and arrays in the dtype they have.

    Returns:
        A function with the signature of `inner_factory`; the state of the transformation it returns is an
        `optax.InjectStatefulHyperparamsState`.

    Raises:
        ValueError: `static_args` names no parameter of `inner_factory`.
        TypeError: `inner_factory` is no function; or a callable argument is neither a schedule nor fits the params
            (names it; raised by `init`).

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import optax
    >>> tx = inject_hyperparams(optax.adamw)(1e-3, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params))
    >>> state = tx.init({"w": jnp.ones((2, 2)), "b": jnp.ones(2)})
    >>> state.hyperparams["learning_rate"], "mask" in state.hyperparams
    (Array(0.001, dtype=float32), False)
    """
    if not callable(inner_factory):
        raise TypeError(
            f"inner_factory must be a function that makes a transformation, such as optax.adam and not "
            f"optax.adam(1e-3); found {type(inner_factory).__name__}"
        )
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    if not static <= signature.parameters.keys():
        raise ValueError(
            "`static_args` must specify a subset of `inner_factory`'s parameters. "
            f"Given `static_args`: {sorted(static)}. `inner_factory` parameters: {sorted(signature.parameters)}"
        )

    @functools.wraps(inner_factory)
    def factory(*args: Any, **kwargs: Any) -> optax.GradientTransformationExtraArgs:
        bound = bind(inner_factory, signature, args, kwargs)
        bound.apply_defaults()
        # The inner transformation is held; the states of schedules are their own business.
        return select_leaves(_injected(inner_factory, signature, bound, static, hyperparam_dtype))

    return factory


def bind(
    f: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call by name; where they do not fit, the error that `f` raises, which names it."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        f(*args, **kwargs)
        raise


def _injected(
    inner_factory: Callable[..., optax.GradientTransformation],
    signature: inspect.Signature,
    bound: inspect.BoundArguments,
    static: set[str],
    hyperparam_dtype: Any,
) -> optax.GradientTransformationExtraArgs:
    def sort(params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments that are schedules, and those that are hyperparameters."""
        kinds = {
            name: "static" if name in static else _kind(value, signature.parameters[name], params)
            for name, value in bound.arguments.items()
        }
        schedules = {k: _stateful(bound.arguments[k]) for k, kind in kinds.items() if kind == "schedule"}
        numbers = {k: bound.arguments[k] for k, kind in kinds.items() if kind == "number"}
        return schedules, numbers

    def make(hyperparams: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
        call = inspect.BoundArguments(signature, OrderedDict({**bound.arguments, **hyperparams}))
        return hold(inner_factory(*call.args, **call.kwargs))

    def init(params: Any) -> optax.InjectStatefulHyperparamsState:
        schedules, numbers = sort(params)
        dtype = _float_dtype(hyperparam_dtype, params)
        states = {name: jtu.tree_map(strong, schedule.init()) for name, schedule in schedules.items()}
        scheduled = {name: schedule(states[name]) for name, schedule in schedules.items()}
        hyperparams = {name: _as_hyperparam(x, dtype) for name, x in {**numbers, **scheduled}.items()}
        inner_state = make(hyperparams).init(params)
        return optax.InjectStatefulHyperparamsState(jnp.zeros([], jnp.int32), hyperparams, states, inner_state)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if unknown := sorted(state.hyperparams.keys() - signature.parameters.keys()):
            raise TypeError(
                f"the state's hyperparams hold {', '.join(unknown)}, which is no argument of the function that was "
                f"injected; its arguments are {', '.join(signature.parameters)}"
            )
        schedules, _ = sort(updates if params is None else params)
        dtype = _float_dtype(hyperparam_dtype, updates if params is None else params)
        scheduled = {name: schedule(state.hyperparams_states[name], **extra) for name, schedule in schedules.items()}
        hyperparams = {name: _as_hyperparam(x, dtype) for name, x in {**state.hyperparams, **scheduled}.items()}
        states = {name: s.update(state.hyperparams_states[name], **extra) for name, s in schedules.items()}
        updates, inner_state = make(hyperparams).update(updates, state.inner_state, params, **extra)
        count = optax.safe_increment(state.count)
        return updates, optax.InjectStatefulHyperparamsState(count, hyperparams, states, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _kind(value: Any, parameter: inspect.Parameter, params: Any) -> str:
    """Whether an argument is static, a schedule or a number."""
    if value is None or isinstance(value, (bool, np.bool_, str, type, np.dtype)):
        return "static"
    if callable(value):
        if value is parameter.default or _maps_params(value, params):
            return "static"
        if isinstance(value, optax.schedules.StatefulSchedule):
            return "schedule"
        try:
            if _maps_count(value):
                return "schedule"
            raised = None
        except Exception as error:  # whatever a mask function raises when it is given a count for the params
            raised = error
        raise TypeError(
            f"inject_hyperparams cannot tell what the argument {parameter.name!r} is: {value!r} neither maps a "
            "step count to one real number, as a schedule does, nor fits the params, as a mask does. "
            + (f"Given a count, it raised {describe_error(raised)}. " if raised else "")
            + f"If it is to be handed on as it is, name it: static_args={parameter.name!r}"
        ) from raised
    if is_array(value) or isinstance(value, (int, float, complex)):
        whole = type(value) is int and (type(parameter.default) is int or parameter.annotation in (int, "int"))
        return "static" if whole else "number"
    return "static"


def _maps_params(value: Any, params: Any) -> bool:
    """Whether `value` is a tree that fits the params, or maps them to one, such as a mask."""
    try:
        spec = resolve_spec(value, params, is_spec_leaf=is_spec_leaf, name="spec")
    except Exception:  # whatever a schedule raises when it is given the params for a count
        return False
    return not _is_real_number(spec) and not any(map(is_array, jtu.tree_leaves(spec)))


def _maps_count(value: Any) -> bool:
    """Whether `value` maps a step count to one real number."""
    if not is_truly_callable(value) and not any(map(_is_number, jtu.tree_leaves(value))):
        return False  # a mask or labels that can be called, for other params
    # A concrete count, since a schedule may branch on it; and no transfer that a user means to forbid.
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        return _is_real_number(value(jnp.zeros([], jnp.int32)))


def _is_number(leaf: Any) -> bool:
    return dtype_of(leaf) is not None and not is_spec_leaf(leaf)


def _is_real_number(x: Any) -> bool:
    dtype = dtype_of(x)
    real = dtype is not None and (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))
    return real and np.shape(x) == ()


def _stateful(schedule: Any) -> Any:
    stateful = isinstance(schedule, optax.schedules.StatefulSchedule)
    return schedule if stateful else optax.schedules.WrappedSchedule(schedule)


def _float_dtype(stated: Any, params: Any) -> Any:
    """What numbers without a dtype of their own are held in: in bf16, b2 = 0.999 would be 1."""
    if stated is not None:
        return stated
    wide = any(x.dtype.itemsize // (1 + np.iscomplexobj(x)) > 4 for x in jtu.tree_leaves(params) if is_inexact_array(x))
    return jnp.float64 if wide else jnp.float32


def _as_hyperparam(x: Any, float_dtype: Any) -> Any:
    if jnp.issubdtype(dtype_of(x), jnp.floating) and not (is_array(x) and not is_weak(x)):
        return jnp.asarray(x, float_dtype)
    return jnp.asarray(x, dtype_of(x))
