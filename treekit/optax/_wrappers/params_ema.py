"""`params_ema` and `get_ema`: keep an average of the params in the optimizer's state."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, overload

import optax
from jax.core import Tracer
from jax.typing import ArrayLike

from treekit._base.describe import describe_value
from treekit._base.dtype import issubdtype
from treekit._base.jax import jnp, jtu
from treekit._base.key_path import flatten_with_names
from treekit._base.predicates import has_gradient, is_real_number
from treekit._base.tree import flatten_updates
from treekit._base.types import KeyPath, OptState, Params, Updates
from treekit._map import cast_tree_like
from treekit._round import widen
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.transformation import GradientTransformation, described

T = TypeVar("T")


class ParamsEmaState(NamedTuple):
    """The state of `params_ema`.

    Attributes:
        ema_count: the number of updates so far; int32, shape ().
        params_ema: the debiased average of the params, in float32 at least.
    """

    ema_count: Any  # not `count`, so that optax.tree.get finds only the count of adam
    params_ema: Any


@described
def params_ema(decay: ArrayLike) -> GradientTransformation[ParamsEmaState]:
    """Keep an exponential moving average of the params in the state; `get_ema` reads it.

    After t steps, it is the average of the params after each step, weighted by `decay**(t - i)` for step i. It is
    debiased: these weights are divided by their sum. The params themselves and the updates are not changed.

    It adds the params and their updates in float32 at least, so put it last in its chain. If params of 16 bits are
    rounded stochastically, their mean is this sum. If they are rounded to nearest, small updates may be lost that the
    average does not lose.

    Args:
        decay: the fraction of the average that remains in each step; at least 0 and less than 1.

    Returns:
        A transformation that does not change the updates; its state is a `ParamsEmaState`. Inside `MultiSteps` it takes
        one step for each round, and inside `apply_if_finite` no step if the update is skipped.

    Raises:
        ValueError: `decay` is out of range; or `update` was called without the params. `treekit.optax.chain` raises
            one where another transformation follows `params_ema`.
        TypeError: `decay` is not a real number.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> optimizer = optax.chain(optax.sgd(1.0), optax.params_ema(0.5))
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(2):
    ...     updates, state = optimizer.update(-jnp.ones(2), state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> params, optax.get_ema(state).round(3)  # the params were 1 and then 2, which counts twice as much
    (Array([2., 2.], dtype=float32), Array([1.667, 1.667], dtype=float32))
    """
    _check_decay(decay)

    def init(params: Params) -> ParamsEmaState:
        return ParamsEmaState(jnp.zeros([], jnp.int32), jtu.tree_map(_wide, params))

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params_ema averages the params, so update needs them: update(updates, state, params)")
        count = optax.safe_increment(state.ema_count)
        log_decay = jnp.log(jnp.asarray(decay, float))
        # (1 - decay) / (1 - decay**count) is the weight of the newest params: 1 in the first step.
        weight = jnp.expm1(log_decay) / jnp.expm1(count.astype(log_decay.dtype) * log_decay)

        def average(old: Any, param: Any, update: Any) -> Any:
            return old + weight.astype(old.dtype) * (param.astype(old.dtype) + update.astype(old.dtype) - old)

        return updates, ParamsEmaState(count, jtu.tree_map(average, state.params_ema, params, updates))

    return at_boundary(optax.GradientTransformationExtraArgs(init, update)).ending_chain()


def _check_decay(decay: Any) -> None:
    if not is_real_number(decay):
        raise TypeError(f"decay must be a real number, found {describe_value(decay)}")
    if not isinstance(decay, Tracer) and not 0 <= decay < 1:
        raise ValueError(f"decay must be at least 0 and less than 1, found {decay!r}")


def _wide(x: Any) -> Any:
    """Return a floating-point array in float32 at least, and a complex array unchanged."""
    return widen(x) if issubdtype(x.dtype, jnp.inexact) else x.astype(float)


@overload
def get_ema(state: OptState) -> Any: ...
@overload
def get_ema(state: OptState, params: T) -> T: ...
def get_ema(state: OptState, params: Params = None) -> Any:
    """Return the average of the params that `params_ema` keeps, from anywhere in an optimizer's state.

    Args:
        state: the state of an optimizer with `params_ema` in it.
        params: the params, or the raw model.

    Returns:
        Without `params`, the average in float32 at least, with None for leaves that are not numbers. With `params`, a
        tree with their structure and dtypes: it has the averages of floating-point and complex arrays, and everything
        else, including leaves that `masked` or `filtered` left out, from `params`. Before the first update, it is the
        params that `init` received.

    Raises:
        ValueError: the state does not have exactly one average of the params; another transformation follows
            `params_ema` in its chain; or `params` have another structure than the average.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> model = {"w": jnp.ones(2, jnp.bfloat16), "activation": jax.nn.relu}
    >>> state = optax.params_ema(0.999).init(model)
    >>> get_ema(state)
    {'activation': None, 'w': Array([1., 1.], dtype=float32)}
    >>> get_ema(state, model)["w"]
    Array([1, 1], dtype=bfloat16)
    """
    found = list(_find((), state))
    if not found:
        raise ValueError(
            "the state has no average of the params: optax.chain(optimizer, optax.params_ema(0.999)) has one"
        )
    if len(found) > 1:
        raise ValueError(
            f"the state has several averages of the params, at {', '.join(jtu.keystr(path) for path, _ in found)}: "
            "pass get_ema the part of the state that has the one you mean"
        )
    ema = found[0][1].params_ema
    return ema if params is None else _in_params(ema, params)


def _find(path: KeyPath, state: OptState) -> Iterator[tuple[Any, ParamsEmaState]]:
    def stop(x: object) -> bool:
        return isinstance(x, ParamsEmaState) or (_is_chain(x) and x is not state)

    for below, node in jtu.tree_flatten_with_path(state, is_leaf=stop)[0]:
        here = (*path, *below)
        if isinstance(node, ParamsEmaState):
            found = [(here, node)]
        else:
            found = list(_find(here, node)) if _is_chain(node) else []
        for where, ema in found:
            if _is_chain(state) and not all(isinstance(x, ParamsEmaState) for x in _later(state, below[0])):
                raise ValueError(
                    f"params_ema is at {jtu.keystr(where)} of the state, and another transformation follows it in its "
                    "chain, so it does not average the params that the optimizer returns. Put it last"
                )
            yield where, ema


def _is_chain(x: object) -> bool:
    """Whether `x` is the state of a chain or of a named chain."""
    return type(x) in (tuple, OrderedDict)


def _later(state: OptState, key: Any) -> list[Any]:
    """The states of the links of a chain after the one of a key."""
    is_named = hasattr(state, "values")
    states: list[Any] = list(state.values() if is_named else state)
    return states[(list(state).index(key.key) if is_named else key.idx) + 1 :]


def _in_params(ema: Params, params: Params) -> Any:
    def is_left_out(x: object) -> bool:
        return isinstance(x, optax.MaskedNode)

    def as_none(x: object) -> Any:
        return None if is_left_out(x) else x

    leaves, treedef = jtu.tree_flatten(params)
    try:
        averages = flatten_updates(treedef, jtu.tree_map(as_none, ema, is_leaf=is_left_out))
    except ValueError as error:  # in Flax, variables of the state and of the model are of other classes
        by_name = dict(flatten_with_names(jtu.tree_map(as_none, ema, is_leaf=is_left_out)))
        names = [name for name, _ in flatten_with_names(params)]
        if not by_name or not by_name.keys() <= set(names):
            raise ValueError(str(error).replace("the updates", "the average that get_ema found")) from None
        averages = list(map(by_name.get, names))
    chosen = [x if e is None or not has_gradient(x) else e for x, e in zip(leaves, averages, strict=True)]
    return cast_tree_like(params, treedef.unflatten(chosen))
