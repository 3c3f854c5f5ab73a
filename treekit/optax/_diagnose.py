"""What is wrong with the arguments of an update that failed: asked only then, since comparing costs tracing time."""

import contextlib
from collections.abc import Generator
from typing import Any

import numpy as np
from jax.core import Tracer

from treekit._describe import describe_error
from treekit._diff import tree_diff
from treekit._dtype import is_weak
from treekit._jax import jtu, untyped
from treekit._tree import path_text
from treekit.optax._transformation import Core

# Dtypes differ on purpose: a user may have cast the state, or the params.
_STRUCTURE = ("type", "structure", "static value", "array against None", "shape")


@contextlib.contextmanager
def diagnosing(core: Core, updates: Any, state: Any, params: Any) -> Generator[None]:
    """Where the body fails, say so if its updates do not fit the params, or its state the optimizer.

    Raises:
        ValueError: they do not fit (a TypeError, if the body raised one); the error of the body is its cause. If all
            fits, the error of the body is raised as it is.
    """
    try:
        yield
    except Exception as error:
        given = updates if params is None else params
        if found := _wrong_shape(updates, given) or _wrong_state(core, state, given):
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{found}.\nIt led to {describe_error(error)}") from error
        raise


def _wrong_shape(updates: Any, params: Any) -> str:
    pairs = zip(jtu.tree_flatten_with_path(params)[0], jtu.tree_leaves(updates), strict=False)
    for (path, param), update in pairs:
        if np.shape(update) != np.shape(param):
            return (
                f"the gradient at {path_text(path)} has shape {np.shape(update)}, and its parameter "
                f"{np.shape(param)}. Give update the gradients of these params"
            )
    return ""


def _wrong_state(core: Core, state: Any, params: Any) -> str:
    try:
        expected = untyped.eval_shape(lambda: core.init(params))
    except Exception:  # init fails too, so that nothing tells what the state should be
        return ""
    differences = [d for d in tree_diff(expected, state, values=False) if d.kind in _STRUCTURE]
    if not differences:
        return ""
    first, *more = differences
    return (
        f"the state does not fit this optimizer and these params. At state{first.path}, init makes {first.left}, and "
        f"the state that was given has {first.right}{f' ({len(more)} more differences)' if more else ''}. "
        + ((first.kind == "array against None" and _traced_number(params)) or _OTHER_STATE)
    )


_OTHER_STATE = (
    "It was made by another optimizer, or for other params, or with another mask, labels or filter_spec: make it by "
    "init"
)


def _traced_number(params: Any) -> str:
    """What to do where a filter has seen a Python number in init, and sees an array in a jitted update."""
    for path, x in jtu.tree_flatten_with_path(params)[0]:
        if isinstance(x, Tracer) and is_weak(x):
            return (
                f"At {jtu.keystr(path) or 'the root'}, the params have a Python number that jax.jit has made an array: "
                "if init was given the number, a filter says another thing of it. Make it an array before init, with "
                "jnp.asarray, or jit the step with equinox.filter_jit, which leaves numbers as they are"
            )
    return ""
