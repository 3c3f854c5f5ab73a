"""An average of the params in the state: `params_ema`, and `get_params_ema`, which returns it."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import optax
from jax.typing import ArrayLike
from jaxtyping import Array

from treekit._arrays.round import widen
from treekit._base.dtype import as_array, dtype_of, shape_of
from treekit._base.jax import jnp, jtu
from treekit._base.predicates import is_real_number, is_traced
from treekit._base.types import OptState, Params, Updates
from treekit._names.key_path import path_text
from treekit._text.describe import describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.known_states import Known, declare
from treekit.optax._kernel.transformation import Core, GradientTransformation
from treekit.optax._wrappers.state_values import ancestors, replace_params, states_in

T = TypeVar("T")
if TYPE_CHECKING:
    Decay = ArrayLike | Callable[[Any], Any]
else:  # the annotation tells inject_hyperparams that a callable is a schedule; checkers that do not read Optax see Any
    Decay = ArrayLike | optax.Schedule


class ParamsEmaState(NamedTuple):
    """The state of `params_ema`.

    Attributes:
        ema_count: the number of updates so far; int32, shape ().
        ema_next_weight: the weight, 1 - decay, that the next params get; 0 before the first update, whose params are
            the initial ones.
        ema_weight_sum: the sum of the weights in the average, by which it was divided; 1 without debiasing.
        params_ema: the average of the params that `update` received, in float32 at least.
    """

    ema_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
    ema_next_weight: Any
    ema_weight_sum: Any
    params_ema: Any


declare(
    ParamsEmaState,
    Known(
        at_least_float32=("params_ema", "ema_next_weight", "ema_weight_sum"),
        always_changes=("params_ema",),
        returns_updates=True,
    ),
)


def params_ema(decay: Decay, debias: bool = True) -> GradientTransformation[ParamsEmaState]:
    """Keep an exponential moving average of the params in the state; `get_params_ema` returns it.

    After t steps, it is the average of the params after each step, with the weight `decay**(t - i)` for step i. Each
    update adds the params that it receives, and `get_params_ema` the current ones. So the average is exact anywhere in
    a chain, inside any wrapper, for frozen params, and if params are rounded or projected after the step. A parameter
    without a gradient counts in each step too, as it is. The params themselves and the updates do not change.

    Inside `MultiSteps` or `apply_if_finite`, where params do not change in the other steps, each step that is taken
    counts once. Inside `conditionally_transform` or `conditionally_mask`, the average has the params before each step
    that runs it, and the current params: those in between are not counted if something else changes them.

    Args:
        decay: the fraction of the average that remains in each step, at least 0 and less than 1; or a schedule, which
            maps the number of the params to it: 0 for those after the first step.
        debias: divide by the sum of the weights. If False, the average starts from the initial params, as if they had
            always been the params before.

    Returns:
        A transformation that does not change the updates; its state is a `ParamsEmaState`.

    Raises:
        ValueError: `decay`, or outside of jit what the schedule returns, is out of range; or `update` was called
            without the params.
        TypeError: `decay` is neither a real number nor a schedule; or the schedule does not return a real number.

    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> optimizer = optax.chain(training.params_ema(0.5), optax.sgd(1.0))
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(-jnp.ones(2), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> params, training.get_params_ema(state, params).round(3)  # they were 1 and then 2, which counts twice as much
    (Array([2., 2.], dtype=float32), Array([1.667, 1.667], dtype=float32))
    """
    if not callable(decay):
        _check_decay(decay, "decay must be", "a real number or a schedule", may_be_one=False)

    def init(params: Params) -> ParamsEmaState:
        average = jtu.tree_map(jnp.array, widen(params))  # copies, since a NumPy array may change
        total = jnp.asarray(0.0 if debias else 1.0, float)
        return ParamsEmaState(jnp.zeros([], jnp.int32), jnp.zeros([], float), total, average)

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params_ema averages the params, so update needs them: update(updates, state, params)")
        # These are the params after the step before, with the weight that was stored then:
        # average + share * (params - average).
        total, share = _total_and_share(state)
        average = jtu.tree_map(functools.partial(_mix, share), state.params_ema, params)
        current: Any = decay
        if callable(decay):
            current = decay(state.ema_count)
            _check_decay(current, "the schedule of params_ema must return", "one real number", may_be_one=True)
        # The weight of the params after this step. Cast last: in float32, 1 - 1e-8 is 1.
        weight = jnp.asarray(1 - current, dtype_of(state.ema_next_weight))
        return updates, ParamsEmaState(optax.safe_increment(state.ema_count), weight, total, average)

    return at_boundary(Core(init, update))


def _check_decay(decay: Any, must: str, kind: str, *, may_be_one: bool) -> None:
    if not is_real_number(decay):
        raise TypeError(f"{must} {kind}, found {describe_value(decay)}")
    if not is_traced(decay) and not (0 <= decay < 1 or (may_be_one and decay == 1)):
        below = "at most 1" if may_be_one else "less than 1"
        raise ValueError(f"{must} at least 0 and {below}, found {decay!r}")


def _total_and_share(state: ParamsEmaState) -> tuple[Array, Array]:
    """Return the sum of the weights including that of the next params, and the fraction that these have of it.

    The sum is decay * sum + weight, where decay = 1 - weight. Until a weight is positive, the average is the latest
    params.
    """
    # In nnx they are inside variables, and a user may have put Python numbers there.
    weight, total = map(as_array, jtu.tree_leaves((state.ema_next_weight, state.ema_weight_sum)))
    total = total + weight * (1 - total)
    has_weight = total > 0
    return total, jnp.where(has_weight, weight / jnp.where(has_weight, total, 1), 1)


def _mix(share: Array, average: Any, param: Any) -> Any:
    share, param = share.astype(average.dtype), param.astype(average.dtype)
    return jnp.where(share == 1, param, average + share * (param - average))


def get_params_ema(state: OptState, params: T) -> T:
    """Return the average of the params that `params_ema` keeps, from anywhere in an optimizer's state.

    Args:
        state: the state of an optimizer with `params_ema` in it, or with one in each group of a `partition`.
        params: the current params, or the raw model. They count as the newest of the average.

    Returns:
        A tree with the structure and dtypes of `params`: it has the averages of floating-point and complex arrays, and
        everything else, including leaves that `masked` left out, from `params`. For an average of 16-bit
        params in float32, pass the params in float32. Before the first update, it is `params`. Its arrays are its own,
        so a step may donate the params; of a `jax.Ref` it has the array.

    Raises:
        ValueError: the state has no average of the params, or several of one leaf; it is one that `jax.vmap` made; it
            is inside `sam`, where the params are not those of this average; or `params` have another structure or other
            shapes than the average.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from treekit import optax, training
    >>> model = {"w": jnp.ones(2, jnp.bfloat16), "activation": jax.nn.relu}
    >>> state = training.params_ema(0.999).init(model)
    >>> training.get_params_ema(state, model)["w"]
    Array([1, 1], dtype=bfloat16)
    """
    states = states_in(state, ParamsEmaState)
    if not states:
        raise ValueError(
            f"get_params_ema(state, params): the state, of type {type(state).__name__}, has no average of the params; "
            "that of optax.chain(optimizer, training.params_ema(0.999)) has one"
        )
    for path in states:
        if shape := shape_of(jtu.tree_leaves(states[path].ema_count)[0]):  # in nnx it is inside a variable
            raise ValueError(
                f"params_ema at {path_text(path)} of the state has a count of shape {shape}, so it has several members "
                "of an ensemble: call jax.vmap(training.get_params_ema)(state, params)"
            )
        for node, _ in ancestors(state, path):
            if isinstance(node, optax.contrib.SAMState):
                raise ValueError(
                    f"params_ema is at {path_text(path)} of the state, inside sam, which does not give it the params "
                    "of every step. Put it around sam, or next to it in a chain"
                )
    shares = {path: _total_and_share(ema)[1] for path, ema in states.items()}
    averages = {path: ema.params_ema for path, ema in states.items()}
    return replace_params(
        params, averages, "averages of the params", lambda path, x, param: _mix(shares[path], x, param)
    )
