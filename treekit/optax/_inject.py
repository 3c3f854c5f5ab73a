"""`inject_hyperparams`: store hyperparameters in the state, where you can read and change them while training.

Is an argument of a factory a number, a schedule, or static? Its type, and the name, annotation and default of its
parameter decide. Nothing is called to find out."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import numpy as np
import optax
from jax.typing import DTypeLike
from optax.schedules import InjectStatefulHyperparamsState, StatefulSchedule, WrappedSchedule

from treekit._base.describe import describe, describe_error, describe_value
from treekit._base.dtype import check_fits, dtype_of, has_dtype, is_weak, issubdtype, strengthen, unshared
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import is_array, is_inexact_array, is_narrow, is_real_number, is_truly_callable
from treekit._base.types import OptState, Params, PyTree, TransformationLike, Updates
from treekit._filter import TreeSpec
from treekit._round import widen
from treekit.optax._boundary import at_boundary
from treekit.optax._factories import Call, Parameter, call_of, read_signature
from treekit.optax._state_map import is_params_placeholder
from treekit.optax._transformation import Core, GradientTransformation, core_of


def inject_hyperparams(
    inner_factory: Callable[..., TransformationLike],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
    *,
    only: str | Iterable[str] | None = None,
) -> Callable[..., GradientTransformation[InjectStatefulHyperparamsState]]:
    """Store the hyperparameters of an optimizer in its state, without `static_args` for masks and other trees.

    The first of these rules that applies to an argument decides what it is:

    1. static: arguments that `static_args` names, or that `only` does not name;
    2. static: None, bools, strings, classes, dtypes;
    3. static: any argument of a parameter whose name ends in "mask" or "labels", or whose annotation says that it is a
       tree or a function of the params: `treekit.typing.Mask` or `Labels`, a `Callable[[optax.Params], …]`, or a union
       of a function of one argument and `Any` or `object`;
    4. a hyperparameter: a number or an array, except that an int is static if the annotation is `int` or `int | None`;
    5. a schedule: a stateful schedule;
    6. static: a callable that is the parameter's default, and a `treekit.path_mask`;
    7. a schedule: any callable for a parameter that is annotated like Optax's learning rates, and any function, in the
       sense of `treekit.is_truly_callable`, for another parameter, as in Optax;
    8. static: anything else (models, masks made from them, transformations, tuples of settings).

    Arguments collected by `**kwargs` count too. A schedule is called once in `init` and once in each update. So `init`
    raises for a function of the params whose parameter does not say what it is: annotate it, or name it in
    `static_args`.

    Args:
        inner_factory: a function of hyperparameters that returns a transformation, such as `optax.adam`.
        static_args: the name, or names, of parameters to pass on unchanged.
        hyperparam_dtype: the dtype in which Python numbers are stored. By default it is float32 at least (float64 for
            float64 params), for ints too, so that any real number can replace a hyperparameter. An array keeps its
            dtype. Ints stay integers if the name of the parameter ends in "key" or "seed", its annotation is an int or
            an array of them, or its default is an int and its annotation `ArrayLike`.
        only: the name, or names, of the parameters that become hyperparameters, even if they are ints; all others are
            static. By default, every parameter that can.

    Returns:
        A function with the signature of `inner_factory`; the state of the transformation that it returns is an
        `optax.InjectStatefulHyperparamsState`. `treekit.optax.get_hyperparams` and `set_hyperparams` read and change
        its hyperparameters. If `jax_numpy_dtype_promotion` is "strict" and the dtypes of hyperparameters and params
        differ, those of less than 32 bits are cast to float32 for the update, and so are the gradients and the state.

    Raises:
        ValueError: `static_args` or `only` names a parameter that `inner_factory` does not have, or both name the same
            parameter.
        TypeError: `inner_factory` is not a function; or `static_args` or `only` is not a name, or names. Or, raised by
            the function that is returned: a learning rate is neither a number nor a schedule, `only` names an argument
            that is neither, or `*args` gathers some, which have no names. Or, raised by `init`: a schedule does not
            return one real number, or a number does not fit its dtype, such as an int that float32 cannot hold. Or,
            raised by `update`: the state was made with a number for an argument that is now a schedule, or the reverse.
            Each message names the argument.

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
    signature, _ = read_signature(inner_factory)
    static = _names_of_parameters("static_args", static_args, signature)
    required = None if only is None else _names_of_parameters("only", only, signature)
    if both := sorted(static & (required or set())):
        raise ValueError(f"`static_args` and `only` both name {', '.join(both)}")

    @functools.wraps(inner_factory)
    def factory(*args: object, **kwargs: object) -> GradientTransformation[InjectStatefulHyperparamsState]:
        arguments = _Sorted(call_of(inner_factory, args, kwargs), static, required)
        return at_boundary(_injected(arguments, hyperparam_dtype))

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


def classify(value: object, parameter: Parameter) -> Literal["static", "number", "schedule"]:
    """Return whether an argument is passed on unchanged, a number or an array, or a schedule.

    Its type decides, and what its parameter says: the first rule that applies.
    """
    if (
        value is None
        or isinstance(value, (bool, np.bool_, str, type))
        or parameter.role in ("mask", "labels", "params")
    ):
        return "static"
    if is_number_or_array(value):
        return "static" if parameter.is_int and isinstance(value, (int, np.integer)) else "number"
    if isinstance(value, StatefulSchedule):
        return "schedule"
    if not callable(value) or value is parameter.default or isinstance(value, TreeSpec):
        return "static"
    return "schedule" if parameter.role == "schedule" or is_truly_callable(value) else "static"


def is_number_or_array(value: object) -> bool:
    """Whether an argument is a number or an array, also one of keys; bools are not numbers, arrays of them are."""
    if isinstance(value, (int, float, complex)):
        return not isinstance(value, bool)
    return is_array(value) and not isinstance(value, np.bool_) and dtype_of(value) is not None


_NO_RATE: Any = (str, bytes, list, tuple, Mapping, complex)


class _Sorted:
    """The arguments of a factory, sorted.

    Attributes:
        call: the call of the factory.
        by_name: each argument with what its parameter says; those that `**kwargs` gathers have their own names.
        numbers: those that are hyperparameters.
        schedules: those that are schedules, as stateful ones.
    """

    def __init__(self, call: Call, static: set[str], required: set[str] | None) -> None:
        self.call = call
        parameters = call.signature.parameters
        values = {name: call.arguments.get(name, x.default) for name, x in parameters.items()}
        self.by_name = {
            name: (call.parameters[name], x) for name, x in values.items() if x is not inspect.Parameter.empty
        }
        for name, x in call.gathered.items():
            if name not in self.by_name:  # one that shares the name of a positional-only parameter is static
                keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
                self.by_name[name] = Parameter.of(keyword), x
        for name, x in call.arguments.items():
            is_unnamed = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            if is_unnamed and x and required is None and name not in static:
                raise TypeError(
                    f"inject_hyperparams stores arguments by name, and *{name} of {call.name} gathers them without "
                    f"names: {describe_value(x)}. Inject a function that names them: lambda learning_rate: "
                    f"{call.name}(learning_rate). To pass them on unchanged: static_args={name!r}"
                )
        if missing := sorted((required or set()) - self.by_name.keys()):  # possible only with `**kwargs`
            raise TypeError(
                f"inject_hyperparams(..., only=...) names {', '.join(missing)}, which was not passed; the arguments "
                f"are {', '.join(self.by_name)}"
            )
        self.numbers: dict[str, Any] = {}
        self.schedules: dict[str, Any] = {}
        for key, (parameter, value) in self.by_name.items():
            if key in static or (required is not None and key not in required):
                continue
            if parameter.role == "schedule" and isinstance(value, _NO_RATE):
                raise TypeError(f"{key} of {call.name} must be a number or a schedule, found {describe_value(value)}")
            kind = classify(value, parameter)
            if kind == "number" or (required is not None and is_number_or_array(value)):
                self.numbers[key] = value
            elif kind == "schedule":
                self.schedules[key] = value if isinstance(value, StatefulSchedule) else WrappedSchedule(value)
            elif required is not None:
                raise TypeError(
                    f"inject_hyperparams(..., only=...) names {key!r}, which is neither a number nor a schedule: "
                    f"{describe_value(value)}"
                )

    def make(self, hyperparams: Mapping[str, Any], params: Params) -> Core:
        """Make the transformation with these hyperparameters."""
        return core_of(self.call.make(hyperparams, params))


def _injected(arguments: _Sorted, hyperparam_dtype: object) -> Core:
    def init(params: Params) -> optax.InjectStatefulHyperparamsState:
        dtype = _float_dtype(hyperparam_dtype, params)
        states = {name: jtu.tree_map(strengthen, schedule.init()) for name, schedule in arguments.schedules.items()}
        if is_params_placeholder(params):  # only the structure of the state matters
            numbers = {name: 0 if isinstance(x, int) else x for name, x in arguments.numbers.items()}
            values = {**numbers, **dict.fromkeys(states, 0)}
        else:
            values = {**arguments.numbers, **{name: _first_value(arguments, name, x) for name, x in states.items()}}
        stored = [_store(arguments, name, x, dtype) for name, x in values.items()]
        # A donated step deletes the arrays of the state, so none of them may be the user's own.
        hyperparams = dict(zip(values, unshared(stored, values.values()), strict=True))
        inner_state = arguments.make(_widening(params, hyperparams)(hyperparams), params).init(params)
        return optax.InjectStatefulHyperparamsState(jnp.zeros([], jnp.int32), hyperparams, states, inner_state)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        _check_state(arguments, state)
        given = updates if params is None else params
        dtype = _float_dtype(hyperparam_dtype, given)
        hyperparams: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        for name, old in state.hyperparams.items():
            if name in arguments.schedules:
                value = arguments.schedules[name](state.hyperparams_states[name], **extra)
                _check_value(arguments, name, value)
                stored[name] = hyperparams[name] = _store(arguments, name, value, dtype)
            else:
                new = hyperparams[name] = _store(arguments, name, old, dtype)
                # An int that the user put into the state stays one there: scan and cond need a state of equal dtypes.
                stored[name] = new if new is old or issubdtype(dtype_of(old), jnp.inexact) else strengthen(old)
        states = {name: arguments.schedules[name].update(x, **extra) for name, x in state.hyperparams_states.items()}
        wide = _widening((updates, params), hyperparams)
        inner = arguments.make(wide(hyperparams), given)
        updates, inner_state = inner.update(*wide((updates, state.inner_state, params)), **extra)
        count = optax.safe_increment(state.count)
        return updates, optax.InjectStatefulHyperparamsState(count, stored, states, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def _check_state(arguments: _Sorted, state: OptState) -> None:
    """Raise a TypeError if a state has other hyperparameters, or schedules, than the arguments."""
    if unknown := sorted(state.hyperparams.keys() - arguments.by_name.keys()):
        raise TypeError(
            f"the state's hyperparams have {', '.join(unknown)}, which is not an argument of the function that was "
            f"injected; its arguments are {', '.join(arguments.by_name)}"
        )
    if others := sorted(state.hyperparams_states.keys() ^ arguments.schedules.keys()):
        raise TypeError(
            f"{', '.join(others)} was a number when the state was made, and is now a schedule, or the reverse. Make "
            "the state with init, or pass the argument that it was made with"
        )


def _first_value(arguments: _Sorted, name: str, state: object) -> object:
    schedule = arguments.schedules[name]
    if not isinstance(schedule, WrappedSchedule):
        return _check_value(arguments, name, schedule(state))
    # The count is concrete, since a schedule may branch on it, and needs no transfer, which users may forbid.
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        try:
            value = schedule.schedule_fn(jnp.zeros([], jnp.int32))
        except Exception as error:  # it is a model, or a function of something else
            raise _not_a_schedule(arguments, name, f"Called with a count, it raised {describe_error(error)}") from error
    return _check_value(arguments, name, value)


def _check_value(arguments: _Sorted, name: str, value: object) -> object:
    """Return the value of a schedule; raise a TypeError unless it is one real number."""
    if not is_real_number(value):
        shown = describe(value) if is_array(value) else describe_value(value)
        found = f"Called with a count, it returned {shown}, but a schedule returns a real number of shape ()"
        raise _not_a_schedule(arguments, name, found)
    return value


def _not_a_schedule(arguments: _Sorted, name: str, found: str) -> TypeError:
    value = arguments.by_name[name][1]
    shown = describe_value(value) if jtu.all_leaves([value]) else type(value).__name__  # a model, perhaps
    return TypeError(
        f"the argument {name!r} of {arguments.call.name} is {shown}, which inject_hyperparams uses as a schedule. "
        f"{found}. To pass it on unchanged, name it: static_args={name!r}"
    )


def _store(arguments: _Sorted, name: str, x: Any, float_dtype: Any) -> Any:
    """Return a hyperparameter as it is stored.

    An array that states its dtype keeps it: as the argument, as the result of a schedule, and as a float that a user
    puts into the state. Other numbers become floats, so that any real number can replace them, except where the
    parameter keeps ints.
    """
    if isinstance(x, jax.Array) and x.dtype == float_dtype and not is_weak(x):
        return x  # the code below returns the same, but takes longer
    parameter, argument = arguments.by_name[name]
    dtype = dtype_of(x)
    is_integer = issubdtype(dtype, jnp.integer)
    is_real = issubdtype(dtype, jnp.floating) or is_integer or issubdtype(dtype, jnp.bool_)
    stated = _states_dtype(x) and (not is_integer or callable(argument) or _states_dtype(argument))
    keeps = stated or not is_real or (is_integer and parameter.keeps_ints)
    dtype = dtype if keeps else float_dtype
    if not fits(x, dtype):
        raise TypeError(
            f"the hyperparameter {name!r} of {arguments.call.name} is {describe(x)}, which {jnp.dtype(dtype)} cannot "
            f"hold. Pass it on unchanged, static_args={name!r}, or as an array of a dtype that holds it"
        )
    return jnp.asarray(x, dtype)


def _states_dtype(x: object) -> bool:
    return has_dtype(x) and not is_weak(x)


def fits(x: Any, dtype: Any) -> bool:
    """Whether an array of this dtype holds an int exactly, and any other number without becoming infinite or an int."""
    try:
        check_fits(x, dtype)
        if isinstance(x, bool) or not isinstance(x, _ON_HOST):
            return True
        if issubdtype(dtype, jnp.integer):
            return bool(int(x) == x and jnp.iinfo(dtype).min <= int(x) <= jnp.iinfo(dtype).max)
        return not isinstance(x, _INTS) or int(np.real(np.asarray(float(x)).astype(dtype))) == int(x)
    except (OverflowError, ValueError):  # ValueError for the int of a NaN
        return False


_INTS: Any = (int, np.integer)


_ON_HOST: Any = (*_INTS, float, np.floating)


def _float_dtype(stated: object, params: Params) -> Any:
    """Return the dtype in which Python numbers are stored: float32 at least, since b2 = 0.999 is 1 in bf16."""
    if stated is not None:
        return stated
    wide = any(x.dtype.itemsize // (1 + np.iscomplexobj(x)) > 4 for x in jtu.tree_leaves(params) if is_inexact_array(x))
    return jnp.float64 if wide else jnp.float32


def _widening(trees: PyTree, hyperparams: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function that casts narrow leaves to f32 if JAX refuses to multiply these arrays, and no leaf otherwise.

    It refuses to multiply a float8 by another dtype, and any two dtypes if promotion is strict.
    """
    is_strict = untyped.config.jax_numpy_dtype_promotion == "strict"
    arrays = jtu.tree_leaves((trees, hyperparams) if is_strict else trees)
    narrow = {x.dtype for x in arrays if is_narrow(x)}
    is_refused = any(dtype.itemsize == 1 for dtype in narrow)
    if narrow and is_strict:
        is_refused = len({dtype_of(x) for x in arrays if issubdtype(dtype_of(x), jnp.floating)}) > 1
    return widen if is_refused else lambda tree: tree
