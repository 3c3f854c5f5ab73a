"""What functions of the params are asked about: the params as the user passed them.

A mask, labels, rates and dimension numbers may be functions, which are called inside, where a tree may have other
dtypes than the params (`store_state` computes in f32), or be the updates (`optax.masked` asks in `update`), which may
have more axes. So while a core runs, the boundary says what the user passed, and a function gets that, with the holes
of the tree that is inside. It is not an argument, since Optax's own functions call cores.
"""

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.types import Params, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit.optax._kernel.holes import is_hole

_PASSED: ContextVar[Params] = ContextVar("passed", default=None)


@contextlib.contextmanager
def passing(params: Params) -> Generator[None, None, None]:
    """Say, while a core runs, which params the user passed: those inside; without them, the updates."""
    token = _PASSED.set(params)
    try:
        yield
    finally:
        _PASSED.reset(token)


def as_passed(tree: PyTree) -> Any:
    """Return what the user passed for a tree inside; itself if it is not like the params, as inside of `flatten`."""
    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_hole)
    try:
        parts = flatten_up_to(treedef, _PASSED.get())
    except ValueError:
        return tree
    pairs = list(zip(leaves, parts, strict=True))
    if not all(is_hole(x) or _is_like(x, part) for x, part in pairs):
        return tree
    return treedef.unflatten(x if is_hole(x) else part for x, part in pairs)


def _is_like(x: Any, param: PyTree) -> bool:
    """Whether an array inside has the shape of a param; or more axes in front, as the gradients of examples have."""
    is_array = param is not None and jtu.all_leaves([param])
    return is_array and shape_of(x)[len(shape_of(x)) - len(shape_of(param)) :] == shape_of(param)
