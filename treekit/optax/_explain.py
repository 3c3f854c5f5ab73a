"""Find out what is wrong with the arguments of an update that failed; only then, since comparing takes time."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from treekit._base.describe import describe, describe_error
from treekit._base.dtype import is_weak
from treekit._base.jax import jtu, untyped
from treekit._base.key_path import flatten_with_path, path_text
from treekit._base.predicates import is_array_without_gradient, is_traced
from treekit._base.types import OptState, Params, PyTree, Updates
from treekit._leaf_diff import STRUCTURE
from treekit._tree_diff import Difference, tree_diff
from treekit.optax._transformation import Core, original


def explain_init(error: Exception, params: Params) -> None:
    """Explain why `init` raised an error, if some of the params are the reason.

    Raises:
        ValueError: they are (a TypeError, if `error` is one).
    """
    _explain(error, _abstract_leaf(params))


def explain_update(
    error: Exception, core: Core, updates: Updates, state: OptState, params: Params, extra: dict[str, Any]
) -> None:
    """Explain why `update` raised an error, if an argument is the reason.

    Raises:
        ValueError: the updates do not fit the params, or the state does not fit the optimizer (a TypeError, if `error`
            is one).
    """
    given = updates if params is None else params

    def works(updates: Updates, params: Params) -> bool:
        try:
            untyped.eval_shape(lambda: core.update(updates, state, params, **extra))
        except Exception:  # whatever a transformation raises
            return False
        return True

    def works_without_integers() -> bool:
        return works(_without_integers(given, updates), None if params is None else _without_integers(given, params))

    _explain(
        error,
        _missing_arguments(error)
        or (params is None and not works(updates, None) and works(updates, updates) and _NEEDS_PARAMS)
        or _wrong_gradient(updates, given, works_without_integers)
        or _wrong_state(core, state, given),
    )


def _explain(error: Exception, found: str) -> None:
    if found:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{found}.\nIt led to {describe_error(error)}") from error


def _missing_arguments(error: Exception) -> str:
    """Say which extra arguments an update lacks, which Python's error names."""
    missing = re.search(r"update\w*\(\) missing \d+ required keyword-only arguments?: (.*)", str(error))
    if not (isinstance(error, TypeError) and missing):
        return ""
    names = re.findall(r"'(\w+)'", missing[1])
    given = ", ".join(f"{name}={name}" for name in names)
    meanings = [f"{name} is {meaning}" for name, meaning in _EXTRA_ARGUMENTS.items() if name in names]
    return f"the optimizer needs more arguments: call update(updates, state, params, {given})" + (
        f", where {', '.join(meanings)}" if meanings else ""
    )


_EXTRA_ARGUMENTS = {
    "value": "the loss at these params",
    "grad": "its gradient",
    "value_fn": "the function from params to the loss",
}


_NEEDS_PARAMS = "the optimizer needs the params, and update was called without: call update(updates, state, params)"


def _wrong_gradient(updates: Updates, params: Params, works_without_integers: Callable[[], bool]) -> str:
    pairs = list(zip(flatten_with_path(params)[0], jtu.tree_leaves(updates), strict=False))
    for (path, param), update in pairs:
        if np.shape(update) != np.shape(param):
            return (
                f"the gradient at {path_text(path)} has shape {np.shape(update)}, and its parameter "
                f"{np.shape(param)}. Pass the gradients of these params to update"
            )
        if np.iscomplexobj(update) and not np.iscomplexobj(param):
            return (
                f"the gradient at {path_text(path)} is {describe(update)}, and its parameter {describe(param)}: the "
                "gradient of a real parameter is real. Pass its real part to update"
            )
    for (path, param), update in pairs:
        if is_array_without_gradient(original(param)):
            found = gradient_of_integers(path_text(path), update, original(param))
            return found if works_without_integers() else ""
    return ""


def _without_integers(params: Params, tree: PyTree) -> Any:
    """Return a tree like the params with None where these have an array of integers."""

    def hide(param: object, x: object) -> Any:
        return None if is_array_without_gradient(original(param)) else x

    return jtu.tree_map(hide, params, tree)


def _wrong_state(core: Core, state: OptState, params: Params) -> str:
    found = [_differences(core, state, shown) for shown in (params, _without_integers(params, params))]
    if not all(found):
        return ""
    first, *more = found[0]
    return (
        "the state does not fit this optimizer and these params. "
        f"At {first.path or 'the root'} of the state, init makes {first.left}, and "
        f"this state has {first.right}{f' (and {len(more)} more)' if more else ''}. "
        + (
            (first.kind == "array against None" and _traced_number(params))
            or (first.right == "Codes" and "Convert its codes of 8 bits with optax.decode_state")
            or (first.left == "Codes" and "Convert it to codes of 8 bits with optax.encode_state")
            or _OTHER_STATE
        )
    )


def _differences(core: Core, state: OptState, params: Params) -> list[Difference]:
    """Return how a state differs from that of `init`, but for dtypes, since a user may have cast state or params."""
    try:
        expected = untyped.eval_shape(lambda: core.init(params))
    except Exception:  # init fails too, so the right state is unknown
        return []
    return [d for d in tree_diff(expected, state, values=False) if d.kind in STRUCTURE]


_OTHER_STATE = (
    "It was made by another optimizer, for other params, or with another mask, labels or filter_spec: make it with init"
)


def _traced_number(params: Params) -> str:
    """Say what to do if a filter saw a Python number in init, and sees an array in a jitted update; else ""."""
    for path, x in flatten_with_path(params)[0]:
        if is_weak(x) and is_traced(x):
            return (
                f"At {path_text(path)}, the params have a Python number that jax.jit has made an array: "
                "if init received the number, a filter may select it differently. Make it an array before init, with "
                "jnp.asarray, or jit the step with equinox.filter_jit, which does not convert numbers"
            )
    return ""


def _abstract_leaf(params: Params) -> str:
    for path, x in flatten_with_path(params)[0]:
        if isinstance(x, jax.ShapeDtypeStruct):
            return (
                f"the params have a ShapeDtypeStruct at {path_text(path)}, and this init computes with their values. "
                "For the shapes of the state, use jax.eval_shape(optimizer.init, params)"
            )
    return ""


def gradient_of_integers(path: str, grad: object, param: object) -> str:
    """Say that an array of integers has a gradient."""
    return (
        f"there is a gradient ({describe(grad)}) at {path}, which is {describe(param)}. Arrays of integers and bools "
        "cannot be trained, so init makes no state for them. Pass None as the gradient, or make it an array of floats "
        "before init"
    )
