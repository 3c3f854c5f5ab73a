"""What functions of the params are asked about: the params as the user passed them.

A mask, labels, rates and dimension numbers may be functions. They are called inside, with a tree that may differ from
the params: in its dtypes (`store_state` computes in f32), or since it is the updates (`optax.masked` asks in `update`),
which may have more axes. So while a core runs, the boundary notes what the user passed, and a function gets that, with
the holes of the tree inside. It is in a context variable and not an argument, since Optax's own functions call cores.
"""

import contextlib
from contextvars import ContextVar
from typing import Any

from treekit._base.context import setting
from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.types import Params, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit.optax._kernel.holes import is_hole

_PASSED: ContextVar[Params] = ContextVar("passed", default=None)


def passing(params: Params) -> contextlib.AbstractContextManager[Params]:
    """Say, while a core runs, which params the user passed: those inside; without them, the updates."""
    return setting(_PASSED, params)


def as_passed(tree: PyTree) -> Any:
    """Return what the user passed for a tree inside; None if it is not like the params, as inside of `flatten`."""
    passed = _PASSED.get()
    if passed is None:
        return tree
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_hole)
    try:
        pairs = list(zip(leaves, flatten_up_to(treedef, passed), strict=True))
    except ValueError:
        return None
    if not all(is_hole(x) or _is_like(x, part) for x, part in pairs):
        return None
    return treedef.unflatten(x if is_hole(x) else part for x, part in pairs)


# Why a function cannot be asked where `as_passed` returns None.
NOT_PASSED = (
    "is asked about the params, and optax.flatten or split_real_and_imaginary, which is around it, has made other "
    "arrays of them. Put that inside: masked(flatten(tx), mask)"
)


def _is_like(x: Any, param: PyTree) -> bool:
    """Whether an array inside has the shape of a param; or more axes in front, as the gradients of examples have."""
    is_array = param is not None and jtu.all_leaves([param])
    return is_array and shape_of(x)[len(shape_of(x)) - len(shape_of(param)) :] == shape_of(param)
