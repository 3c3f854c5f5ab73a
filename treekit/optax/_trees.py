"""Make Optax's functions on trees, such as `optax.global_norm` and `optax.tree.zeros_like`, accept raw models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from treekit._dtype import as_array
from treekit._filter import combine, partition
from treekit._jax import jtu
from treekit._predicates import is_inexact_parameter, is_parameter

# The functions of optax.tree that compute with all leaves of their arguments; the others take states and keys.
ON_TREES: tuple[Callable[..., Any], ...] = (
    optax.global_norm,
    *(
        getattr(optax.tree, name)
        for name in (
            *("add", "add_scale", "allclose", "bias_correction", "cast", "cast_like", "clip", "conj", "div", "dtype"),
            *("full_like", "max", "min", "mul", "norm", "ones_like", "random_like", "real", "scale", "size", "sub"),
            *("sum", "update_infinity_moment", "update_moment", "update_moment_per_elem_norm", "vdot", "where"),
            *("zeros_like",),
        )
        if hasattr(optax.tree, name)
    ),
)


def on_parameters(f: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """Apply one of these functions to the leaves that can be parameters; other leaves do not count and do not change.

    `random_like` draws normal numbers by default, so integers and bools do not change either.

    Args:
        f: the function.
        module: the module from which pickle can import it.
        name: its name there.
    """

    signature = inspect.signature(f)

    @functools.wraps(f)
    def wrapped(*args: object, **kwargs: object) -> Any:
        counts = (
            is_inexact_parameter
            if f is optax.tree.random_like and _draws_normal(signature, args, kwargs)
            else is_parameter
        )
        # For each tree, its structure without the leaves left out, and those leaves.
        left_out: list[tuple[Any, Any]] = []

        def parameters(x: object) -> Any:
            if jtu.all_leaves([x]):  # an array, or another argument: a dtype, a decay, a sampler
                return x
            kept, others = partition(x, counts)
            left_out.append((jtu.tree_structure(kept), others))
            return jtu.tree_map(as_array, kept)

        result = f(*map(parameters, args), **{name: parameters(x) for name, x in kwargs.items()})
        structure = jtu.tree_structure(result)
        return next((combine(result, others) for kept, others in left_out if kept == structure), result)

    wrapped.__module__, wrapped.__name__, wrapped.__qualname__ = module, name, name
    return wrapped


def _draws_normal(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = signature.bind_partial(*args, **kwargs).arguments
    return given.get("dtype") is None and given.get("sampler", jax.random.normal) is jax.random.normal
