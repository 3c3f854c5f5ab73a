"""`filter_scan`: `jax.lax.scan` whose carry, inputs and outputs are whole models."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, overload

from treekit._base.dtype import is_weak
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import is_array
from treekit._base.types import PyTree
from treekit._compare.diff import tree_diff
from treekit._compare.differences import TreeDiff
from treekit._compare.exact import PLAIN, exact_key
from treekit._names.key_path import flatten_with_path, path_text
from treekit._select.filter import combine, filter_arrays, partition
from treekit._text.describe import describe, describe_value, type_name

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


@overload
def filter_scan(
    f: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    length: int | None = None,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: bool | Callable[..., Any] = False,
) -> tuple[Carry, Y]: ...
@overload
def filter_scan(
    f: Callable[[Carry, None], tuple[Carry, Y]],
    init: Carry,
    xs: None = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: bool | Callable[..., Any] = False,
) -> tuple[Carry, Y]: ...
def filter_scan(
    f: Callable[..., Any],
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    unroll: int | bool = 1,
    checkpoint: bool | Callable[..., Any] = False,
) -> tuple[Any, Any]:
    """Scan as `jax.lax.scan` does, where carry, inputs and outputs may have functions, strings and Python numbers.

    With a model stacked by `tree_stack` as `xs`, this applies its layers one after the other, and compiles one layer
    only. With a model as the carry, it is a training loop. It traces `f` again if `f` is another object, as a bound
    method is each time, or if shapes, dtypes or leaves that are not arrays differ.

    Args:
        f: takes a carry like `init` and an entry of `xs`, and returns the next carry and an output.
        init: the first carry, any pytree. Its leaves that are not arrays must not change, and neither may its
            structure with all static fields. For a number that changes, pass an array.
        xs: any pytree, whose arrays have a first axis of one length: each step receives one entry of each array, and
            all other leaves unchanged.
        length: the number of steps, needed if `xs` has no arrays.
        reverse: start from the last entry.
        unroll: as in `jax.lax.scan`.
        checkpoint: True computes each step again in the backward pass, instead of storing what it computed, as
            `jax.checkpoint` does; or a policy of `jax.checkpoint_policies`, which says what is stored.

    Returns:
        The last carry, and the outputs: an array of each output has the steps along a new first axis; other leaves of
        an output are those of the step that was traced.

    Raises:
        TypeError: a leaf of the carry that is not an array changes, or its structure does; the message lists the
            differences. So does an array whose shape or dtype changes. Or `f` is not a function, or does not return a
            pair, or `checkpoint` is neither a bool nor a policy.
        ValueError: an array of `xs` has no axis; the message names its key path.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from treekit import tree_stack
    >>> layers = tree_stack([{"w": jnp.full((2, 2), scale), "f": jnp.tanh} for scale in (0.1, 0.2, 0.3)])
    >>> def apply(x, layer):
    ...     x = layer["f"](layer["w"] @ x)
    ...     return x, jnp.linalg.norm(x)
    >>> out, norms = filter_scan(apply, jnp.ones(2), layers)
    >>> out.shape, norms.shape
    ((2,), (3,))
    """
    if not callable(f):
        raise TypeError(f"filter_scan: f must be a function of a carry and an input, found {describe_value(f)}")
    if not (isinstance(checkpoint, bool) or callable(checkpoint)):
        raise TypeError(f"checkpoint must be a bool or a policy of jax.checkpoint, found {describe_value(checkpoint)}")
    first, each = _split(init), _split(xs)
    for path, x in flatten_with_path(each.arrays)[0]:
        if not x.shape:
            raise ValueError(
                "filter_scan: the arrays of xs must have a first axis, with an entry for each step; found "
                f"{describe(x)} at {path_text(path, 'xs')}"
            )
    if length is None and not jtu.tree_leaves(each.arrays):
        raise ValueError(
            "filter_scan: xs has no array, and length is None. It takes (f, init, xs): to run layers one after "
            "another, write filter_scan(lambda x, layer: (layer(x), None), x, tree_stack(layers))"
        )
    try:
        last, ys = lax.scan(_body_of(f, checkpoint), first, each, length, reverse, unroll)
    except Exception as error:
        if _are_layers(xs):
            error.add_note(
                "xs is a list of trees of one structure, and each step gets a list, with an entry of each of their "
                "arrays. To get one tree after another, pass treekit.tree_stack(xs)"
            )
        raise
    return last.whole(), ys.whole()


def _are_layers(xs: PyTree) -> bool:
    """Whether `xs` is a list of nodes of one structure, such as layers that are not stacked."""
    if type(xs) not in (list, tuple) or len(xs) < 2 or jtu.all_leaves(xs):
        return False
    return len({jtu.tree_structure(filter_arrays(x)) for x in xs}) == 1


class _Rest:
    """The leaves of a tree that are not arrays: equal if each is the same object, or an equal plain value."""

    def __init__(self, tree: PyTree) -> None:
        self.tree = tree
        leaves, treedef = jtu.tree_flatten(tree)
        self._key: Hashable = treedef, *(exact_key(x) if type(x) in PLAIN else id(x) for x in leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@untyped.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Split:
    """A tree in two: its arrays, which JAX traces, and the rest, which is static.

    So JAX knows the rest of an output too, also of a body that it has traced before.
    """

    arrays: PyTree
    rest: _Rest = dataclasses.field(metadata={"static": True})

    def whole(self) -> Any:
        return combine(self.arrays, self.rest.tree)


def _split(tree: PyTree) -> _Split:
    arrays, rest = partition(tree)
    return _Split(arrays, _Rest(rest))


# The bodies of loops over a function that is in use. They do not refer to it, so that it can be freed.
_bodies: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, Any]] = weakref.WeakKeyDictionary()


def _body_of(f: Callable[..., Any], checkpoint: bool | Callable[..., Any]) -> Any:
    """Return the body of a loop over `f`: the same object each time, by which JAX finds what it has traced.

    It is kept for an `f` that is hashed by identity, as a function is. A bound method is another object each time, and
    an equal callable node may have other arrays.
    """
    hash_of: Any = type(f).__hash__
    if hash_of is object.__hash__:
        with contextlib.suppress(TypeError):  # a ufunc has no weak references, and a policy may have no hash
            bodies = _bodies.setdefault(f, {})
            if checkpoint not in bodies:
                bodies[checkpoint] = _body(weakref.ref(f), checkpoint)
            return bodies[checkpoint]
    return _body(lambda: f, checkpoint)


def _body(get_f: Callable[[], Any], checkpoint: bool | Callable[..., Any]) -> Any:
    body = functools.partial(_step, get_f)
    if checkpoint is False:
        return body
    policy = None if checkpoint is True else checkpoint
    # In a scan, nothing can be computed once for both passes.
    return untyped.checkpoint(body, prevent_cse=False, policy=policy)


def _step(get_f: Callable[[], Any], carry: _Split, x: _Split) -> tuple[_Split, _Split]:
    """Call the function with whole trees, and check that only the values of arrays differ in the next carry."""
    args = carry.whole(), x.whole()
    try:
        pair: Any = get_f()(*args)
    except Exception as error:
        error.add_note(
            f"filter_scan called f with the carry, {type_name(args[0])}, and an entry of xs, {type_name(args[1])}"
        )
        raise
    kind: type[object] = pair.__class__
    if not (issubclass(kind, (tuple, list)) and len(pair) == 2):
        raise TypeError(
            f"filter_scan: f must return a pair, the next carry and an output; found {describe_value(pair)}"
        )
    new, y = pair
    before, arrays = carry.arrays, filter_arrays(new)
    if jtu.tree_structure(arrays) == jtu.tree_structure(before):
        before = jtu.tree_map(_promoted, before, arrays)
    shown = [jtu.tree_map(_shape_of_array, tree) for tree in (combine(before, carry.rest.tree), new)]
    if diff := TreeDiff(dict.fromkeys(tree_diff(*shown))):
        raise TypeError(
            "filter_scan: f must return a carry like the one that it takes, in which only the values of arrays "
            "differ. Cast an array whose dtype changes. If a Python number changes, start with an array: "
            f"jax.numpy.asarray(0.0).\ncarry | the carry that f returns:\n{diff}"
        )
    return _Split(arrays, carry.rest), _split(y)


def _shape_of_array(x: Any) -> Any:
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _promoted(x: Any, y: Any) -> Any:
    """Return `y` if `lax.scan` would promote the array `x` of the first carry, whose dtype is weak, to its dtype."""
    return y if is_weak(x) and x.shape == y.shape and jnp.result_type(x, y) == y.dtype else x
