"""Which array of a state belongs to which parameter?

A tree in the state that has the structure of the params has one array for each of them. In a tuple where the state of
a chain may stand, the arrays must have the shapes of the params too: a chain of two links has the structure of params
(w, b). Moments that are kept for a parameter without a gradient, sharding, dtypes in which state is stored, and
summaries all ask here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.flax import is_variable
from treekit._base.jax import jnp, jtu
from treekit._base.tree import children_of, numbered
from treekit._base.types import KeyPath, OptState, Params, PyTree, PyTreeDef
from treekit._names.key_path import flatten_with_path
from treekit.optax._kernel.holes import is_hole
from treekit.optax._kernel.known_states import Known, known, known_of


class Entry(NamedTuple):
    """What is known of one array of a state.

    Attributes:
        path: its key path in the state.
        depth: how many keys of the path lead to the tree that is like the params; the others lead through that. All of
            them, outside of such trees.
        owner: the class of the innermost state with a field that has the array, such as `optax.ScaleByAdamState`; None
            outside of such states.
        field: that field, such as "mu"; "" outside of states.
        param: the index, among the leaves of the params (None and MaskedNode are leaves), of the parameter that it
            belongs to; None if it belongs to none, or to several.
        in_rounds: whether it is in, or below, the state of a transformation that takes rounds of updates, such as
            `MultiSteps`.
        of_no_param: whether it is in, or below, a field that is known to belong to no parameter.

    For example, of the array at `inner_state.0.mu.w`, in the state of masked(adam): `depth` is 3, `owner` is
    `optax.ScaleByAdamState`, `field` is "mu", and `param` is the number of the parameter w.
    """

    path: KeyPath
    depth: int
    owner: Any
    field: str
    param: int | None
    in_rounds: bool
    of_no_param: bool

    @property
    def known(self) -> Known:
        """What is known of the states of its owner."""
        return known(self.owner)


def map_state(state: OptState, params: Params) -> list[Entry]:
    """Return an entry for each leaf of a state, in order.

    Args:
        state: the state of any optimizer.
        params: the params for which it was made, or the updates. If they are one array, the arrays of its shape, or
            with more axes in front, belong to it.
    """
    return [entry for x, at, like in places(state, params) for entry in at.entries(x, like)]


class LikeParams(NamedTuple):
    """A tree of a state that is like the params, in parts.

    Attributes:
        parts: the parts: each is one array, or the pair of a complex one, or a hole.
        numbers: the numbers of the params that each stands for, as in `Entry.param`: one, or, of a hole, any number.
        treedef: the structure of the tree.
    """

    parts: list[Any]
    numbers: list[tuple[int, ...]]
    treedef: PyTreeDef


def numbers_of_leaves(params: Params) -> list[int]:
    """Return the number that each leaf of the params has in `Entry.param`, which counts holes too."""
    return [i for i, x in enumerate(jtu.tree_leaves(params, is_leaf=is_hole)) if not is_hole(x)]


def places(state: OptState, params: Params) -> Iterator[tuple[Any, "Place", LikeParams | None]]:
    """Yield each tree of a state that is like the params, and each other leaf, for which there is None, in order."""
    leaves, treedef = jtu.tree_flatten(params, is_leaf=is_hole)
    # Not the params: JAX writes leaves into the error of a tree that does not fit, and would copy arrays for that.
    likes, numbers = numbered(treedef)

    def below(x: object, at: Place) -> Iterator[tuple[Any, Place, LikeParams | None]]:
        cls: Any = type(x)
        may_be_chain = at.may_be_state and cls is tuple
        like = None if at.of_no_param else _like_params(x, likes, numbers, leaves, by_shape=may_be_chain)
        if like is not None or jtu.all_leaves([x]):
            yield x, at, like
            return
        for key, child in children_of(x).items():
            yield from below(child, at.below(x, key))

    root = Place((), owner=None, field="", in_rounds=False, of_no_param=False, may_be_state=True)
    yield from below(state, root)


class Place(NamedTuple):
    """The place of a node in a state; its fields are as in `Entry`.

    And `may_be_state`: whether the state of a transformation can be there: at the root, in a chain, or in a field such
    as `inner_state`.
    """

    path: KeyPath
    owner: Any
    field: str
    in_rounds: bool
    of_no_param: bool
    may_be_state: bool

    def entries(self, x: object, like: LikeParams | None) -> Iterator[Entry]:
        """Yield an entry for each array of the node that is here, with the numbers of their parameters, if any."""
        paths = [path for path, _ in flatten_with_path(x)[0]]  # a hole has none
        numbers: list[int | None] = [None] * len(paths)
        if like is not None:
            parts = zip(like.parts, like.numbers, strict=True)
            numbers = [each[0] for part, each in parts for _ in _arrays_of(part)]
        for path, number in zip(paths, numbers, strict=True):
            whole = (*self.path, *path)
            depth = len(whole if like is None else self.path)
            yield Entry(whole, depth, self.owner, self.field, number, self.in_rounds, self.of_no_param)

    def below(self, x: object, key: Any) -> "Place":
        """Return the place of a child of the node that is here."""
        if is_variable(x):  # its value has the same path, as in `flatten_with_path`
            return self
        if not isinstance(key, jax.tree_util.GetAttrKey) or _is_split(x):
            return self._replace(path=(*self.path, key))
        field, in_rounds = str(key.name), self.in_rounds or known_of(x).takes_rounds
        of_no_param = self.of_no_param or field in known_of(x).of_no_param
        return Place((*self.path, key), type(x), field, in_rounds, of_no_param, "state" in field)


def _like_params(
    x: object, likes: PyTree, number_of: Mapping[int, int], params: list[Any], *, by_shape: bool
) -> LikeParams | None:
    """Return a tree that has the structure of the params in parts; None for one that does not have it.

    An array stands for one parameter, and so do the two of a complex one; a hole stands for any number of them, and has
    no array.

    Args:
        x: a part of a state.
        likes: the params, with a mark in place of each.
        number_of: the number of each mark by its id.
        params: the params in a list.
        by_shape: whether the arrays must have the shapes of the params.
    """
    if id(likes) in number_of:  # the params are one array, and every leaf has that structure
        return LikeParams([x], [(0,)], jtu.tree_structure(0)) if _is_like_array(x, params[0]) else None
    if type(x) is not type(likes):  # asked first, since a hole would stand for all params
        return None
    parts, treedef = jtu.tree_flatten(x, is_leaf=_is_part)
    try:
        subtrees = treedef.flatten_up_to(likes)
    except ValueError:
        return None
    numbers = [tuple(number_of[id(mark)] for mark in jtu.tree_leaves(subtree)) for subtree in subtrees]
    for part, subtree in zip(parts, subtrees, strict=True):
        if is_hole(part):
            continue
        i = number_of.get(id(subtree))
        if i is None or (by_shape and not all(_is_like_array(array, params[i]) for array in _arrays_of(part))):
            return None
    return LikeParams(parts, numbers, treedef)


def _is_split(x: object) -> bool:
    """Whether `x` is what `split_real_and_imaginary` has for a complex array: a pair of real ones."""
    return type(x).__name__ == "SplitRealAndImaginaryArrays"


def _is_part(x: object) -> bool:
    return is_hole(x) or _is_split(x)


def _arrays_of(part: object) -> list[Any]:
    """Return the arrays that a state has for one parameter: one, or a pair."""
    return jtu.tree_leaves(part)


def _is_like_array(x: object, param: object) -> bool:
    """Whether a part of a state is an array like params that are one array.

    L-BFGS stores several arrays for each param, along a first axis.
    """
    if not issubdtype(dtype_of(x), jnp.inexact) or not jtu.all_leaves([x]):
        return False
    shape, wanted = shape_of(x), shape_of(param)
    return shape == wanted or bool(wanted and shape and shape[-len(wanted) :] == wanted)
