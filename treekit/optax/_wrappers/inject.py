"""`inject_hyperparams`: store hyperparameters in the state, where you can read and change them while training."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import optax
from jax.typing import DTypeLike
from optax.schedules import InjectStatefulHyperparamsState, StatefulSchedule, WrappedSchedule

from treekit._base.bounds import holds
from treekit._base.dtype import dtype_of, has_dtype, is_weak, issubdtype, strengthen, weakened
from treekit._base.jax import jnp, jtu
from treekit._base.memory import unshared
from treekit._base.predicates import is_array, is_inexact_array, is_real_number, is_traced
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._text.describe import describe, describe_error, describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.misfit import StateError
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._wrappers.call import Call, bind_original, converted
from treekit.optax._wrappers.kinds import Given, Kind, kinds_of, named_arguments
from treekit.optax._wrappers.parameters import read_signature


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
    7. a schedule: any callable for a parameter that is annotated like Optax's learning rates, `optax.ScalarOrSchedule`;
    8. static: anything that is not a function in the sense of `treekit.is_truly_callable` (models, masks made from
       them, transformations, tuples of settings);
    9. an error: a function whose parameter is annotated as another `Callable`, or a protocol with `__call__`, such as
       `clip_value_fn` of `optax.contrib.adopt`. Name it in `static_args`, or, if it is a schedule, in `only`;
    10. a schedule: any other function, as in Optax.

    Arguments collected by `**kwargs` count too. A schedule is called once in `init` and once in each update. So `init`
    raises for a function of the params whose parameter does not say what it is: annotate it, or name it in
    `static_args`. Under `jax.jit` a hyperparameter has no value in Python, so the factory cannot check it, as
    `optax.contrib.reduce_on_plateau` checks its `factor`: such an argument must be static too.

    Args:
        inner_factory: a function of hyperparameters that returns a transformation, such as `optax.adam`.
        static_args: the name, or names, of parameters to pass on unchanged.
        hyperparam_dtype: the dtype in which Python numbers are stored. By default it is float32 at least (float64 for
            float64 params), for ints too, so that any real number can replace a hyperparameter. An array keeps its
            dtype. Ints stay integers if the name of the parameter ends in "key" or "seed", its annotation is an int or
            an array of them, or its default is an int and its annotation `ArrayLike`.
        only: the name, or names, of the parameters that become hyperparameters, even if they are ints, or functions
            of which rule 9 would raise an error; all others are static. By default, every parameter that can.

    Returns:
        A function with the signature of `inner_factory`; the state of the transformation that it returns is an
        `optax.InjectStatefulHyperparamsState`. `training.get_hyperparams` and `set_hyperparams` read and change
        its hyperparameters. Numbers compute as Python numbers do, so updates are those of the optimizer that is not
        injected; arrays, and numbers of a `hyperparam_dtype`, compute in their own dtype.

    Raises:
        ValueError: `static_args` or `only` names a parameter that `inner_factory` does not have, or both name the same
            parameter.
        TypeError: `inner_factory` is not a function. Or, raised by the function that is returned: `only` names an
            argument that is neither a number nor a schedule, rule 9 applies, or `*args` gathers some, which have no
            names. Or, raised by `init`: a schedule does not return one real number, or a number does not fit its
            dtype, such as an int that float32 cannot hold. Or, raised by `update`: the state was made with a number
            for an argument that is now a schedule, or the reverse. Each message names the argument.

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
    if isinstance(inner_factory, optax.GradientTransformation):
        raise TypeError(
            "inject_hyperparams takes a function that makes an optimizer, and found an optimizer. Write "
            "inject_hyperparams(optax.adam)(1e-3) for optax.adam(1e-3)"
        )
    signature, _ = read_signature(inner_factory)
    static = _names("static_args", static_args, signature)
    required = None if only is None else _names("only", only, signature)
    if both := sorted(static & (required or set())):
        raise ValueError(f"`static_args` and `only` both name {', '.join(both)}")

    @functools.wraps(inner_factory)
    def factory(*args: object, **kwargs: object) -> GradientTransformation[InjectStatefulHyperparamsState]:
        call = bind_original(inner_factory, args, kwargs)
        arguments = named_arguments(call, static, required)
        kinds = kinds_of(call.name, arguments, static, required)
        injected = _Injected(converted(call) if call.is_of_optax else call, arguments, kinds, hyperparam_dtype)
        return at_boundary(Core(injected.init, injected.update))

    return factory


def _names(what: str, given: Any, signature: inspect.Signature) -> set[str]:
    """Return the names that `static_args` or `only` gives; raise unless they are those of parameters."""
    if not isinstance(given, Iterable):
        raise TypeError(
            f"`{what}` must name parameters, found {describe_value(given)}. Pass arguments to the function that is "
            "returned: inject_hyperparams(optax.adam)(1e-3)"
        )
    names: set[str] = {given} if isinstance(given, str) else {*given}
    takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in signature.parameters.values())
    if not takes_any and not names <= signature.parameters.keys():
        raise ValueError(
            f"`{what}` must specify a subset of `inner_factory`'s parameters. "
            f"Given `{what}`: {sorted(names)}. `inner_factory` parameters: {sorted(signature.parameters)}"
        )
    return names


class _Injected:
    """The core of a transformation whose hyperparameters are in its state.

    Attributes:
        call: the call of the factory.
        arguments: its arguments by name.
        numbers: those that are numbers.
        schedules: those that are schedules, as stateful ones.
    """

    def __init__(
        self, call: Call, arguments: dict[str, Given], kinds: dict[str, Kind], hyperparam_dtype: DTypeLike | None
    ) -> None:
        self.call, self.arguments, self._hyperparam_dtype = call, arguments, hyperparam_dtype
        self.numbers = {name: x.value for name, x in arguments.items() if kinds[name] == "number"}
        self.schedules: dict[str, Any] = {
            name: x.value if isinstance(x.value, StatefulSchedule) else WrappedSchedule(x.value)
            for name, x in arguments.items()
            if kinds[name] == "schedule"
        }

    def init(self, params: Params) -> optax.InjectStatefulHyperparamsState:
        dtype = self._float_dtype(params)
        states = {name: jtu.tree_map(_own, schedule.init()) for name, schedule in self.schedules.items()}
        values = {**self.numbers, **{name: self._first_value(name, x) for name, x in states.items()}}
        # A donated step deletes the arrays of the state, so none of them may be the user's own.
        stored = unshared([self._store(name, x, dtype) for name, x in values.items()], values.values())
        hyperparams = dict(zip(values, stored, strict=True))
        inner_state = self._inner(hyperparams).init(params)
        return optax.InjectStatefulHyperparamsState(jnp.zeros([], jnp.int32), hyperparams, states, inner_state)

    def update(self, updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        self._check_state(state)
        dtype = self._float_dtype(updates if params is None else params)
        hyperparams: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        for name, old in state.hyperparams.items():
            if name in self.schedules:
                value = self._check_value(name, self.schedules[name](state.hyperparams_states[name], **extra))
                (stored[name],) = unshared([self._store(name, value, dtype)], [value])
                hyperparams[name] = stored[name]
            else:
                new = hyperparams[name] = self._store(name, old, dtype)
                # An int that the user put into the state stays one there: scan and cond need a state of equal dtypes.
                stored[name] = new if new is old or issubdtype(dtype_of(old), jnp.inexact) else strengthen(old)
        states = {name: self.schedules[name].update(x, **extra) for name, x in state.hyperparams_states.items()}
        updates, inner_state = self._inner(hyperparams).update(updates, state.inner_state, params, **extra)
        count = optax.safe_increment(state.count)
        return updates, optax.InjectStatefulHyperparamsState(count, stored, states, inner_state)

    def _check_state(self, state: OptState) -> None:
        """Raise an error if a state has other hyperparameters than the arguments."""
        old, new = set(state.hyperparams), {*self.numbers, *self.schedules}
        if old != new:
            sides = [f"the state has {', '.join(sorted(old - new))}"] * bool(old - new)
            sides += [f"it lacks {', '.join(sorted(new - old))}"] * bool(new - old)
            raise StateError(
                f"the hyperparameters of the state are not those of {self.call.name} as it is injected now: "
                f"{'; '.join(sides)}. Pass the arguments, `only` and table with which the state was made; make it "
                "again with init; or carry over the rest with treekit.graft, whose fresh= and rename= name these"
            )

    def _first_value(self, name: str, state: object) -> object:
        schedule = self.schedules[name]
        if not isinstance(schedule, WrappedSchedule):
            return self._check_value(name, schedule(state))
        # The count is concrete, since a schedule may branch on it, and needs no transfer, which users may forbid.
        with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
            try:
                value = schedule.schedule_fn(jnp.zeros([], jnp.int32))
            except Exception as error:  # it is a model, or a function of something else
                raise self._not_a_schedule(name, f"it raised {describe_error(error)}") from error
        return self._check_value(name, value)

    def _check_value(self, name: str, value: object) -> object:
        """Return the value of a schedule; raise a TypeError unless it is one real number."""
        if not is_real_number(value):
            raise self._not_a_schedule(name, f"it returned {describe_value(value)}, and not a real number of shape ()")
        return value

    def _not_a_schedule(self, name: str, result: str) -> TypeError:
        return TypeError(
            f"{name!r} of {self.call.name} is a function, and used as a schedule. Called with a count, {result}. To "
            f"pass another function on unchanged, name it in inject_hyperparams: static_args={name!r}"
        )

    def _store(self, name: str, x: Any, float_dtype: DTypeLike) -> Any:
        """Return a hyperparameter as it is stored."""
        if isinstance(x, jax.Array) and x.dtype == float_dtype and not is_weak(x):
            return x  # the code below returns the same, but takes longer
        dtype = dtype_of(x) if self._keeps_dtype(name, x) else float_dtype
        if not holds(x, dtype):
            raise TypeError(
                f"the hyperparameter {name!r} of {self.call.name} is {describe(x)}, which {jnp.dtype(dtype)} cannot "
                f"hold. Pass it on unchanged, static_args={name!r}, or as an array of a dtype that holds it"
            )
        return jnp.array(x, dtype, copy=isinstance(x, np.ndarray))  # otherwise it may share the memory of NumPy's

    def _keeps_dtype(self, name: str, x: Any) -> bool:
        """Whether a hyperparameter is stored in its own dtype, and not as a float: the first row that holds.

        | a hyperparameter | keeps its dtype |
        |---|---|
        | integers, of a parameter that keeps ints | yes |
        | integers that state a dtype, if the argument is a schedule, or states one too | yes |
        | other integers | no, so that any real number can replace them |
        | floats and bools that state a dtype | yes |
        | Python floats and bools | no |
        | keys, complex numbers | yes |
        """
        argument, parameter = self.arguments[name]
        dtype = dtype_of(x)
        if issubdtype(dtype, jnp.integer):
            may_be_array = callable(argument) or _states_dtype(argument)
            return parameter.keeps_ints or (may_be_array and _states_dtype(x))
        is_real = issubdtype(dtype, jnp.floating) or issubdtype(dtype, jnp.bool_)
        return _states_dtype(x) or not is_real

    def _inner(self, hyperparams: dict[str, Any]) -> Core:
        """Call the factory with these hyperparameters."""
        return core_of(self.call.with_values(self._values(hyperparams)).make())

    def _values(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """Return hyperparameters as the factory gets them: those that state no dtype compute as Python numbers do.

        So they are weakly typed, and no update becomes wider than that of the optimizer that is not injected.
        """

        def value(name: str, x: Any) -> Any:
            is_plain = self._hyperparam_dtype is None and not _states_dtype(self.arguments[name].value)
            return weakened(x) if is_plain and issubdtype(x.dtype, jnp.floating) else x

        return {name: value(name, x) for name, x in hyperparams.items()}

    def _float_dtype(self, params: Params) -> Any:
        """Return the dtype in which Python numbers are stored: float32 at least, since b2 = 0.999 is 1 in bf16."""
        if self._hyperparam_dtype is not None:
            return self._hyperparam_dtype
        arrays = list(filter(is_inexact_array, jtu.tree_leaves(params)))
        is_wide = any(x.dtype.itemsize // (1 + np.iscomplexobj(x)) > 4 for x in arrays)
        return jax.dtypes.canonicalize_dtype(np.float64 if is_wide or not arrays else np.float32)


def _own(x: object) -> Any:
    """Return a leaf of the first state of a schedule, strongly typed, and a copy where it is an array of the user's."""
    return strengthen(jnp.copy(x) if is_array(x) and not is_traced(x) else x)


def _states_dtype(x: object) -> bool:
    return has_dtype(x) and not is_weak(x)
