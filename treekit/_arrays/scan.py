"""`filter_scan`: `jax.lax.scan` whose carry, inputs and outputs are whole models."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import is_weak
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.key_path import flatten_with_path, path_text
from treekit._base.predicates import is_array
from treekit._base.types import PyTree
from treekit._compare.diff import TreeDiff, tree_diff
from treekit._select.filter import combine, filter_arrays, partition

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
    only. With a model as the carry, it is a training loop. Call it in a jitted function: outside of one, each call
    compiles again.

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
            differences. So does an array whose shape or dtype changes. Or `f` does not return a pair, or `checkpoint`
            is neither a bool nor a policy.
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
    if not (isinstance(checkpoint, bool) or callable(checkpoint)):
        raise TypeError(f"checkpoint must be a bool or a policy of jax.checkpoint, found {describe_value(checkpoint)}")
    arrays, rest = partition(init)
    x_arrays, x_rest = partition(xs)
    for path, x in flatten_with_path(x_arrays)[0]:
        if not x.shape:
            raise ValueError(
                "filter_scan: the arrays of xs must have a first axis, with an entry for each step; found "
                f"{describe(x)} at {path_text(path, 'xs')}"
            )
    y_rest: PyTree = None

    def step(arrays: Any, x: Any) -> tuple[Any, Any]:
        nonlocal y_rest
        pair: Any = f(combine(arrays, rest), combine(x, x_rest))
        kind: type[object] = pair.__class__
        if not (issubclass(kind, (tuple, list)) and len(pair) == 2):
            raise TypeError(
                f"filter_scan: f must return a pair, the next carry and an output; found {describe_value(pair)}"
            )
        carry, y = pair
        new_arrays = filter_arrays(carry)
        before: Any = arrays
        if jtu.tree_structure(new_arrays) == jtu.tree_structure(arrays):
            before = jtu.tree_map(_promoted, arrays, new_arrays)
        shown = (jtu.tree_map(_shape_of_array, tree) for tree in (combine(before, rest), carry))
        if diff := TreeDiff(dict.fromkeys(tree_diff(*shown))):
            raise TypeError(
                "filter_scan: f must return a carry like the one that it takes, in which only the values of arrays "
                "differ. Cast an array whose dtype changes. If a Python number changes, start with an array: "
                f"jax.numpy.asarray(0.0).\ncarry | the carry that f returns:\n{diff}"
            )
        y_arrays, y_rest = partition(y)
        return new_arrays, y_arrays

    body: Any = step
    if checkpoint is not False:  # in a scan, nothing can be computed once for both passes
        policy = None if checkpoint is True else checkpoint
        body = untyped.checkpoint(step, prevent_cse=False, policy=policy)
    carry, ys = lax.scan(body, arrays, x_arrays, length, reverse, unroll)
    return combine(carry, rest), combine(ys, y_rest)


def _shape_of_array(x: Any) -> Any:
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _promoted(x: Any, y: Any) -> Any:
    """Return `y` if `lax.scan` would promote the array `x` of the first carry, whose dtype is weak, to its dtype."""
    return y if is_weak(x) and x.shape == y.shape and jnp.result_type(x, y) == y.dtype else x
