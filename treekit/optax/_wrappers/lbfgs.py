"""`lbfgs`, and `value_and_grad_from_state`, which reads the value and gradient that its line search stored."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import optax

from treekit._arrays.cast import cast_tree_like
from treekit._arrays.shapes import check_shapes
from treekit._base.dtype import cast_like
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_real_number
from treekit._base.tree import fill_none, is_none
from treekit._base.types import OptState, Params, TransformationLike, Updates
from treekit._compare.prefix import updates_mismatch
from treekit._text.describe import describe_value
from treekit.optax._kernel.boundary import at_boundary
from treekit.optax._kernel.misfit import StateError
from treekit.optax._kernel.trained import trained
from treekit.optax._kernel.transformation import Core, GradientTransformation, core_of
from treekit.optax._kernel.types import ValueAndGradFn
from treekit.optax._wrappers.numbers import check_numbers_of
from treekit.optax._wrappers.state_values import states_in

V = TypeVar("V")

_optax_lbfgs = optax.lbfgs
_LINESEARCH = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: optax.ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: TransformationLike | None = _LINESEARCH,
) -> GradientTransformation[tuple[Any, ...]]:
    """Make the L-BFGS optimizer, `optax.lbfgs`, for raw models and every floating-point dtype; jit traces it once.

    `value_fn` is called with the whole model, even if only a part of it is optimized.

    Args:
        learning_rate: scales the step, in addition to the line search.
        memory_size: the number of past updates from which the inverse Hessian is approximated.
        scale_init_precond: whether the first approximation is a scaled identity.
        linesearch: the transformation that finds the length of a step, or None.

    Returns:
        A transformation, whose `update` needs the params, and `value`, `grad` and `value_fn` by name for a line search.

    Raises:
        ValueError: raised by `update` without the params, or if a line search reads `grad` and it does not fit them.
        StateError: raised by `update` for a state of another `memory_size`.
        TypeError: `linesearch` is not a transformation; or, raised by `update` with a line search, `value` or the
            result of `value_fn` is not a real number of shape (), or `value_fn` is not a function.

    Source: algorithms 7.4 and 7.5 of Nocedal and Wright, Numerical Optimization.

    >>> import jax.numpy as jnp
    >>> import equinox as eqx
    >>> import jax
    >>> model = eqx.nn.MLP("scalar", "scalar", 4, depth=1, key=jax.random.key(0))
    >>> x = jnp.linspace(0, 1, 8)
    >>> def loss(model):
    ...     return jnp.mean((jax.vmap(model)(x) - x**2) ** 2)
    >>> tx = lbfgs()
    >>> value, grad = eqx.filter_value_and_grad(loss)(model)
    >>> updates, state = tx.update(grad, tx.init(model), model, value=value, grad=grad, value_fn=loss)
    >>> bool(loss(eqx.apply_updates(model, updates)) < value)
    True
    """
    check_numbers_of(lbfgs, learning_rate, memory_size, scale_init_precond, linesearch)
    search = None if linesearch is None else core_of(linesearch, "linesearch of lbfgs")
    tx = _optax_lbfgs(learning_rate, memory_size, scale_init_precond, search)
    return at_boundary(_checked(tx, memory_size, reads_grad=search is not None))


def _checked(tx: Core, memory_size: int, *, reads_grad: bool) -> Core:
    """Cast gradients to the dtypes of the params, which the memory has; check its size, and the argument grad."""
    inner_init, inner_update = tx

    def update(updates: Updates, state: OptState, params: Params = None, **extra: object) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "lbfgs needs the params: update(updates, state, params, value=..., grad=..., value_fn=...)"
            )
        for memory in states_in(state, optax.ScaleByLBFGSState).values():
            if memory.weights_memory.shape != (memory_size,):
                raise StateError(
                    f"the state has a memory of {memory.weights_memory.size} updates, and this optimizer has "
                    f"memory_size={memory_size}. Make it again with init, or keep memory_size"
                )
        if reads_grad:
            extra = _check_extra_args(extra, params)
        return inner_update(cast_tree_like(params, updates), state, params, **extra)

    return Core(inner_init, update)


def _check_extra_args(extra: dict[str, Any], params: Params) -> dict[str, Any]:
    """Check what a line search reads, if it is there; return it with a `value_fn` that checks its result."""
    if "grad" in extra:
        _check_grad(extra["grad"], params)
    if "value" in extra and not is_real_number(extra["value"]):
        raise TypeError(f"value must be a real number of shape (), found {describe_value(extra['value'])}")
    if "value_fn" not in extra:
        return extra
    value_fn = extra["value_fn"]
    if not callable(value_fn):
        raise TypeError(f"value_fn must be a function, found {describe_value(value_fn)}")

    @functools.wraps(value_fn)  # line searches inspect the names of its arguments
    def checked(*args: Any, **kwargs: Any) -> Any:
        value = value_fn(*args, **kwargs)
        if not is_real_number(value):
            raise TypeError(f"value_fn must return a real number of shape (), and returned {describe_value(value)}")
        return value

    return {**extra, "value_fn": checked}


def _check_grad(grad: Updates, params: Params) -> None:
    try:
        check_shapes(params, grad, names=("params", "argument grad"))
    except ValueError as error:
        where = updates_mismatch(jtu.tree_structure(params), grad, "argument grad") or error
        hint = ". Are value and grad swapped?" if is_real_number(grad) else ""
        raise ValueError(f"the argument grad of update does not fit the params: {where}{hint}") from None


def value_and_grad_from_state(value_fn: Callable[..., V]) -> ValueAndGradFn[V]:
    """Return a function that reads value and gradient from the state, where a line search has stored them.

    This is `optax.value_and_grad_from_state` for raw models. If the state has no finite value yet, or the gradient of
    only a part of the params (inside `masked`), value and gradient are computed.

    Args:
        value_fn: takes params, or a raw model, and further arguments, and returns a real array of shape ().

    Returns:
        A function `(params, *args, state, **kwargs) -> (value, grad)`; `grad` is None for leaves that are not trained.

    Raises:
        ValueError: raised by that function if the state does not have value and gradient.

    >>> import jax.numpy as jnp
    >>> params = jnp.array([1.0, 2.0])
    >>> value, grad = value_and_grad_from_state(lambda p: jnp.sum(p**2))(params, state=lbfgs().init(params))
    >>> value, grad
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """

    def value_and_grad(params: Params, *args: object, state: OptState, **kwargs: object) -> tuple[Any, Any]:
        # Fields of states only: the params in them may have such keys too.
        value, stored = (optax.tree.get(state, name, filtering=_is_field) for name in ("value", "grad"))
        if value is None or stored is None:
            raise ValueError(
                "Value or gradient not found in the state. The optimizer must store both, as lbfgs does, and "
                "scale_by_backtracking_linesearch with store_grad=True."
            )
        inside = trained(params)
        grad = _where_trained(inside, stored)
        is_whole = jtu.tree_structure(grad) == jtu.tree_structure(inside)  # not that of a part, as inside masked
        like = grad if is_whole else inside

        def fn(inside: Params) -> Any:
            return value_fn(fill_none(inside, params), *args, **kwargs)

        def compute() -> tuple[Any, Any]:
            new_value, new_grad = untyped.value_and_grad(fn)(inside)
            return cast_like(new_value, value), jtu.tree_map(cast_like, new_grad, like)

        if not is_whole:
            return compute()
        new_value, new_grad = lax.cond(jnp.isfinite(value), lambda: (value, grad), compute)
        return new_value, new_grad

    return value_and_grad


def _is_field(path: Sequence[object], _: object) -> bool:
    return isinstance(path[-1], optax.tree_utils.NamedTupleKey)


def _where_trained(inside: Params, grad: Updates) -> Any:
    """Return the gradient with None where the params inside have None; None if it has another structure."""
    leaves, treedef = jtu.tree_flatten(inside, is_leaf=is_none)
    try:
        grads = treedef.flatten_up_to(grad)
    except ValueError:
        return None
    return treedef.unflatten([None if x is None else g for x, g in zip(leaves, grads, strict=True)])
