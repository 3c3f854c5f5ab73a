"""Find out what is wrong with the arguments of an update that failed; only then, since comparing takes time."""

import contextlib
from collections.abc import Generator

import numpy as np

from treekit._describe import describe_error
from treekit._diff import tree_diff
from treekit._dtype import is_weak
from treekit._jax import jtu, untyped
from treekit._predicates import is_traced
from treekit._tree import path_text
from treekit._types import OptState, Params, Updates
from treekit.optax._transformation import Core

# Differences in dtype do not count: a user may have cast the state or the params.
_STRUCTURE = ("type", "structure", "static value", "array against None", "shape")


@contextlib.contextmanager
def diagnosing(core: Core, updates: Updates, state: OptState, params: Params) -> Generator[None]:
    """If the body fails, check whether the updates fit the params, and the state fits the optimizer.

    Raises:
        ValueError: they do not fit (or a TypeError, if the body raised one); the error of the body is its cause. If
            they fit, the error of the body is re-raised.
    """
    try:
        yield
    except Exception as error:
        given = updates if params is None else params
        if found := _wrong_shape(updates, given) or _wrong_state(core, state, given):
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{found}.\nIt led to {describe_error(error)}") from error
        raise


def _wrong_shape(updates: Updates, params: Params) -> str:
    pairs = zip(jtu.tree_flatten_with_path(params)[0], jtu.tree_leaves(updates), strict=False)
    for (path, param), update in pairs:
        if np.shape(update) != np.shape(param):
            return (
                f"the gradient at {path_text(path)} has shape {np.shape(update)}, and its parameter "
                f"{np.shape(param)}. Pass the gradients of these params to update"
            )
    return ""


def _wrong_state(core: Core, state: OptState, params: Params) -> str:
    try:
        expected = untyped.eval_shape(lambda: core.init(params))
    except Exception:  # init fails too, so the right state is unknown
        return ""
    differences = [d for d in tree_diff(expected, state, values=False) if d.kind in _STRUCTURE]
    if not differences:
        return ""
    first, *more = differences
    return (
        f"the state does not fit this optimizer and these params. At state{first.path}, init makes {first.left}, and "
        f"this state has {first.right}{f' ({len(more)} more differences)' if more else ''}. "
        + ((first.kind == "array against None" and _traced_number(params)) or _OTHER_STATE)
    )


_OTHER_STATE = (
    "It was made by another optimizer, for other params, or with another mask, labels or filter_spec: make it with init"
)


def _traced_number(params: Params) -> str:
    """Say what to do if a filter saw a Python number in init, and sees an array in a jitted update; else ""."""
    for path, x in jtu.tree_flatten_with_path(params)[0]:
        if is_weak(x) and is_traced(x):
            return (
                f"At {path_text(path)}, the params have a Python number that jax.jit has made an array: "
                "if init received the number, a filter may select it differently. Make it an array before init, with "
                "jnp.asarray, or jit the step with equinox.filter_jit, which does not convert numbers"
            )
    return ""
