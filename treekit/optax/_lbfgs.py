"""lbfgs, and the value and gradient that its line search leaves in the state."""

from collections.abc import Callable
from typing import Any, TypeVar

import optax

from treekit._dtype import cast_like
from treekit._filter import combine, partition
from treekit._jax import jnp, jtu, lax, untyped
from treekit._map import cast_tree_like
from treekit._predicates import is_inexact_array
from treekit.optax._boundary import at_boundary
from treekit.optax._transformation import GradientTransformation, described
from treekit.optax._types import ValueAndGradFn

V = TypeVar("V")

_optax_lbfgs = optax.lbfgs
_LINESEARCH = optax.scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


@described
def lbfgs(
    learning_rate: optax.ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: optax.GradientTransformation | None = _LINESEARCH,
) -> GradientTransformation[tuple[Any, ...]]:
    """`optax.lbfgs` on raw models, in any floating dtype, inside scan, traced once.

    `value_fn` is called with the whole model, whatever part of it is optimized.

    Args:
        learning_rate: scales the step; by default the line search alone does.
        memory_size: how many past updates approximate the inverse Hessian.
        scale_init_precond: whether the first approximation is a scaled identity.
        linesearch: finds the length of a step; None for none.

    Returns:
        A transformation; its update takes `value`, `grad` and `value_fn`.

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
    return at_boundary(_in_param_dtypes(_optax_lbfgs(learning_rate, memory_size, scale_init_precond, linesearch)))


def _in_param_dtypes(tx: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Gradients in the dtypes of the params, of which the memory of past gradients is."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "lbfgs needs the params: update(updates, state, params, value=..., grad=..., value_fn=...)"
            )
        return tx.update(cast_tree_like(params, updates), state, params, **extra)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def value_and_grad_from_state(value_fn: Callable[..., V]) -> ValueAndGradFn[V]:
    """`optax.value_and_grad_from_state` on raw models: the value and gradient that a line search has left in the state.

    Where the state has no finite value yet, or holds the gradient of a part of the params only (inside `masked`), value
    and gradient are computed.

    Args:
        value_fn: takes params, or a raw model, and further arguments; returns a real array of shape ().

    Returns:
        A function `(params, *args, state, **kwargs) -> (value, grad)`; grad is None where params hold no
            inexact array.

    Raises:
        ValueError: the state holds no value and gradient. Raised by the function returned.

    >>> import jax.numpy as jnp
    >>> params = jnp.array([1.0, 2.0])
    >>> value, grad = value_and_grad_from_state(lambda p: jnp.sum(p**2))(params, state=lbfgs().init(params))
    >>> value, grad
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """

    def value_and_grad(params: Any, *args: Any, state: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, grad = optax.tree.get(state, "value"), optax.tree.get(state, "grad")
        if value is None or grad is None:
            raise ValueError(
                "Value or gradient not found in the state. The optimizer must store both, as lbfgs does, and "
                "scale_by_backtracking_linesearch with store_grad=True."
            )
        inexact, rest = partition(params, is_inexact_array)

        def fn(inexact_params: Any) -> Any:
            return value_fn(combine(inexact_params, rest), *args, **kwargs)

        def compute() -> tuple[Any, Any]:
            new_value, new_grad = untyped.value_and_grad(fn)(inexact)
            return cast_like(new_value, value), jtu.tree_map(cast_like, new_grad, grad)

        grad = _where_inexact(params, grad)
        if jtu.tree_structure(grad) != jtu.tree_structure(inexact):  # inside masked, for one
            grad = inexact
            return compute()
        new_value, new_grad = lax.cond(jnp.isfinite(value), lambda: (value, grad), compute)
        return new_value, new_grad

    return value_and_grad


def _where_inexact(params: Any, grad: Any) -> Any:
    """The gradient as JAX would give it: None where the params are no inexact array."""
    leaves, treedef = jtu.tree_flatten(params)
    try:
        grads = treedef.flatten_up_to(grad)
    except ValueError:
        return None
    return treedef.unflatten([g if is_inexact_array(p) else None for p, g in zip(leaves, grads, strict=True)])
