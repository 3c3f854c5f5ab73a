"""What functions of the params are asked about: the params as the user passed them.

A mask, labels, rates and dimension numbers may be functions. They are called inside, with a tree that may differ from
the params: in its dtypes (`store_state` computes in f32), or since it is the updates (`optax.masked` asks in `update`),
which may have more axes. So while a core runs, the boundary says what the user passed, and a function gets that, with
the holes of the tree inside. It is not an argument, since Optax's own functions call cores.

A core that runs on a list of some of the leaves, as in `param_groups`, is in a `LeafGroup`: functions are asked about
the tree that has all of them, once for all groups.
"""

import contextlib
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from treekit._base.context import setting
from treekit._base.dtype import shape_of
from treekit._base.jax import jtu
from treekit._base.types import Params, PyTree
from treekit._compare.prefix import flatten_up_to
from treekit.optax._kernel.holes import is_hole

_PASSED: ContextVar[Params] = ContextVar("passed", default=None)


class LeafGroup(NamedTuple):
    """Some leaves of the params, of which a core sees a list.

    Attributes:
        params: the params inside, with all leaves.
        numbers: which of the leaves are in the list.
        answers: from the id of a spec to the spec, which keeps the id its own, and its value for each leaf of the
            params. All groups of an update share it.
    """

    params: Params
    numbers: Sequence[int]
    answers: dict[int, tuple[Any, list[Any]]]

    def is_of(self, tree: PyTree) -> bool:
        """Whether a tree inside is the list of the leaves, perhaps with holes."""
        cls: Any = tree.__class__  # to type checkers, `type(tree)` is partially unknown
        return cls is list and len(tree) == len(self.numbers)


_GROUP: ContextVar[LeafGroup | None] = ContextVar("group", default=None)


def passing(params: Params) -> contextlib.AbstractContextManager[Params]:
    """Say, while a core runs, which params the user passed: those inside; without them, the updates."""
    return setting(_PASSED, params)


def in_group(group: LeafGroup | None) -> contextlib.AbstractContextManager[LeafGroup | None]:
    """Say, while a core runs, that it sees a list of some leaves only; or, with None, that it sees a tree again."""
    return setting(_GROUP, group)


def group_inside(tree: PyTree) -> LeafGroup | None:
    """Return the group whose list of leaves a tree is; None for any other tree."""
    group = _GROUP.get()
    return group if group is not None and group.is_of(tree) else None


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
