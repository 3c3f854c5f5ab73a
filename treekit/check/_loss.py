"""Compute gradients, and the extra arguments of line searches and Polyak steps, from a loss."""

import re
from collections.abc import Callable
from typing import Any

from treekit._base.describe import describe_error
from treekit._base.dtype import dtype_of, issubdtype
from treekit._base.jax import jnp, jtu, untyped
from treekit._base.predicates import is_inexact_array
from treekit._base.types import Params, TransformationLike, Updates
from treekit._filter import combine, partition
from treekit.check._case import Case, default_gradients, rebuilt
from treekit.check._load import UsageError
from treekit.check._treatments import is_abstract

Loss = Callable[[Any], Any]


def gradients(name: str, loss: Loss, params: Params) -> Any:
    """Return the gradients of a user's loss, with None for leaves that are not inexact arrays."""
    arrays, rest = partition(params, is_inexact_array)

    def loss_of_arrays(arrays: Params) -> Any:
        return loss(combine(arrays, rest))

    try:
        return untyped.grad(loss_of_arrays)(arrays)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be differentiated with respect to the model: {describe_error(error)}"
        ) from None


def squares(params: Params) -> Loss:
    """Return a loss whose gradient at these params is 1: half the sum of squares of their leaves, shifted to 1."""
    anchors = _inexact_leaves(params)
    wide = any(jnp.finfo(dtype_of(x)).bits == 64 for x in anchors)
    dtypes = (jnp.float64, jnp.complex128) if wide else (jnp.float32, jnp.complex64)

    def shifted(x: object, anchor: object) -> Any:
        dtype = dtypes[jnp.iscomplexobj(x)]
        return jnp.asarray(x, dtype) - jnp.asarray(anchor, dtype) + 1

    def loss(params: Params) -> Any:
        terms = [shifted(x, anchor) for x, anchor in zip(_inexact_leaves(params), anchors, strict=True)]
        return sum((jnp.real(y * jnp.conj(y)).sum() for y in terms), start=jnp.zeros([], dtypes[0])) / 2

    return loss


def _inexact_leaves(params: Params) -> list[Any]:
    """Return the inexact arrays and numbers; an optimizer may pass Python numbers to a loss as arrays."""

    def is_inexact(x: object) -> bool:
        return issubdtype(dtype_of(x), jnp.inexact) and not is_abstract(x)

    return [x for x in jtu.tree_leaves(params) if is_inexact(x)]


def extra_arguments(tx: TransformationLike, params: Params, grads: Updates, loss: Loss) -> dict[str, Any]:
    """Return the extra arguments that update needs, computed from a loss.

    Errors of update name the arguments that are missing. The signature of a chain does not have them, and a line search
    rejects arguments that it does not know.
    """
    try:
        grads = default_gradients(params) if grads is None else grads
    except Exception:
        return {}  # a law reports it
    offered = {"value": loss(params), "grad": grads, "value_fn": loss, "obj_fn": loss}
    extra: dict[str, Any] = {}
    while True:
        case = Case(tx, params, grads, extra)
        try:
            untyped.eval_shape(case.update, case.arrays, tx.init(rebuilt(params)))
            return extra
        except Exception as error:  # the laws report any other error
            missing = set(re.findall(r"(?<=')\w+(?=')|\w+_fn", str(error))) & offered.keys() - extra.keys()
            if not missing:
                return extra
            extra |= {name: offered[name] for name in missing}
