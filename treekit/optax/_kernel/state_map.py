"""Which array of a state belongs to which parameter?

A tree in the state that has the structure of the params has one array for each of them. In a tuple where the state of
a chain may stand, the arrays must have the shapes of the params too: a chain of two links has the structure of params
(w, b). Moments that are kept for a parameter without a gradient, sharding, dtypes in which state is stored, and
summaries all ask here.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.flax import is_variable
from treekit._base.jax import jnp, jtu
from treekit._base.tree import children_of, numbered
from treekit._base.types import KeyPath, OptState, Params, PyTreeDef
from treekit._names.key_path import flatten_with_path
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.known_states import Known, known, known_of


class Entry(NamedTuple):
    """What is known of a part of a state, such as one of its arrays.

    Attributes:
        path: its key path in the state.
        depth: how many keys of the path lead to the tree that is like the params; the others lead through that. All of
            them, outside of such trees.
        owner: the class of the innermost state with a field that has the part, such as `optax.ScaleByAdamState`; None
            outside of such states.
        field: that field, such as "mu"; "" outside of states.
        param: the index, among the leaves of the params (None and MaskedNode are leaves), of the parameter that it
            belongs to; None if it belongs to none, or to several.
        in_rounds: whether it is in, or below, the state of a transformation that takes rounds of updates, such as
            `MultiSteps`.
        of_no_param: whether it is in, or below, a field that is known to belong to no parameter.
        may_be_state: whether it may be the state of a transformation: at the root, in a chain, or in a field such as
            `inner_state`.

    For example, of the array at `inner_state.0.mu.w`, in the state of masked(adam): `depth` is 3, `owner` is
    `optax.ScaleByAdamState`, `field` is "mu", and `param` is the number of the parameter w.
    """

    path: KeyPath = ()
    depth: int = 0
    owner: Any = None
    field: str = ""
    param: int | None = None
    in_rounds: bool = False
    of_no_param: bool = False
    may_be_state: bool = True

    @property
    def known(self) -> Known:
        """What is known of the states of its owner."""
        return known(self.owner)


class LikeParams(NamedTuple):
    """A tree of a state that is like the params, in parts.

    For params {a: {x, y}, b}, the leaves are a.x, a.y and b, with the numbers 0, 1 and 2. The tree {a: MaskedNode(),
    b: f32[2]} is like them: its parts are the hole, with the numbers (0, 1), and the array, with the number (2,).

    Attributes:
        parts: the parts: each is one array, or the pair of a complex one, or a hole.
        numbers: the numbers of the params that each stands for, as in `Entry.param`: one, or, of a hole, any number.
        treedef: the structure of the tree.
    """

    parts: list[Any]
    numbers: list[tuple[int, ...]]
    treedef: PyTreeDef


def map_state(state: OptState, params: Params) -> list[Entry]:
    """Return an entry for each leaf of a state, in order.

    Args:
        state: the state of any optimizer.
        params: the params for which it was made, or the updates. If they are one array, the arrays of its shape, or
            with more axes in front, belong to it.
    """
    return [entry for x, at, like in trees_of_state(state, params) for entry in _entries(x, at, like)]


def numbers_of_leaves(params: Params) -> list[int]:
    """Return the number that each leaf of the params has in `Entry.param`, which counts holes too."""
    return [i for i, x in enumerate(jtu.tree_leaves(params, is_leaf=is_hole)) if not is_hole(x)]


def trees_of_state(state: OptState, params: Params) -> Iterator[tuple[Any, Entry, LikeParams | None]]:
    """Yield each tree of a state that is like the params, and each other leaf, for which there is None, in order."""
    known_params = _Params(params)

    def walk(x: Any, at: Entry) -> Iterator[tuple[Any, Entry, LikeParams | None]]:
        like = None if at.of_no_param else known_params.in_parts(x, by_shape=at.may_be_state and type(x) is tuple)
        if like is not None or jtu.all_leaves([x]):
            yield x, at, like
            return
        for key, child in children_of(x).items():
            yield from walk(child, _below(at, x, key))

    yield from walk(state, Entry())


def _below(at: Entry, x: object, key: Any) -> Entry:
    """Return what is known of a child of a node, `x`, of which `at` is known."""
    if is_variable(x):  # its value has the same path, as in `flatten_with_path`
        return at
    if not isinstance(key, jax.tree_util.GetAttrKey) or _is_split(x):
        return at._replace(path=(*at.path, key))
    field = str(key.name)
    return Entry(
        path=(*at.path, key),
        owner=type(x),
        field=field,
        in_rounds=at.in_rounds or known_of(x).takes_rounds,
        of_no_param=at.of_no_param or field in known_of(x).of_no_param,
        may_be_state="state" in field,
    )


def _entries(x: object, at: Entry, like: LikeParams | None) -> Iterator[Entry]:
    """Yield an entry for each array of such a tree, or leaf, of which `at` is known; a hole has none."""
    paths = [(*at.path, *path) for path, _ in flatten_with_path(x)[0]]
    if like is None:
        yield from (at._replace(path=path, depth=len(path)) for path in paths)
        return
    parts = zip(like.parts, like.numbers, strict=True)
    numbers = [each[0] for part, each in parts for _ in jtu.tree_leaves(part)]
    for path, number in zip(paths, numbers, strict=True):
        yield at._replace(path=path, depth=len(at.path), param=number)


class _Params:
    """The params for which a state was made, with which its parts are compared."""

    def __init__(self, params: Params) -> None:
        self._leaves, treedef = jtu.tree_flatten(params, is_leaf=is_hole)
        # Not the params: JAX writes leaves into the error of a tree that does not fit, and would copy arrays for that.
        self._marks, self._number_of = numbered(treedef)
        self._are_one_leaf = treedef == jtu.tree_structure(0)

    def in_parts(self, x: Any, *, by_shape: bool) -> LikeParams | None:
        """Return a part of a state that has the structure of the params in parts; None for one that does not have it.

        An array stands for one parameter, and so do the two of a complex one; a hole stands for any number of them, and
        has no array.

        Args:
            x: the part of the state.
            by_shape: whether the arrays must have the shapes of the params.
        """
        if self._are_one_leaf:  # and every leaf has that structure
            return LikeParams([x], [(0,)], jtu.tree_structure(0)) if _is_like_array(x, self._leaves[0]) else None
        if type(x) is not type(self._marks):  # asked first, since a hole would stand for all params
            return None
        parts, treedef = jtu.tree_flatten(x, is_leaf=_is_part)
        try:
            subtrees = treedef.flatten_up_to(self._marks)
        except ValueError:
            return None
        numbers = [tuple(self._number_of[id(mark)] for mark in jtu.tree_leaves(subtree)) for subtree in subtrees]
        for part, subtree, each in zip(parts, subtrees, numbers, strict=True):
            if is_hole(part):
                continue
            if id(subtree) not in self._number_of:
                return None
            if by_shape and not all(_is_like_array(array, self._leaves[each[0]]) for array in jtu.tree_leaves(part)):
                return None
        return LikeParams(parts, numbers, treedef)


def _is_split(x: object) -> bool:
    """Whether `x` is what `split_real_and_imaginary` has for a complex array: a pair of real ones."""
    return type(x).__name__ == "SplitRealAndImaginaryArrays"


def _is_part(x: object) -> bool:
    return is_hole(x) or _is_split(x)


def _is_like_array(x: object, param: object) -> bool:
    """Whether a part of a state is an array of the shape of a param, perhaps with one axis more, as L-BFGS has it."""
    if not issubdtype(dtype_of(x), jnp.inexact) or not jtu.all_leaves([x]):
        return False
    shape, wanted = shape_of(x), shape_of(param)
    return shape == wanted or bool(wanted and shape and shape[-len(wanted) :] == wanted)
