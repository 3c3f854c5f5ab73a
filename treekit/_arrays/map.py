"""Map over trees while preserving the dtype of each leaf."""

from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from treekit._arrays.cast import cast_each
from treekit._base.jax import jtu
from treekit._base.types import LeafPredicate, PyTree
from treekit._compare.prefix import flatten_up_to_each
from treekit._text.describe import describe_value

T = TypeVar("T")


Casting = Literal["same_kind", "unsafe"]


class _Options(TypedDict, total=False):
    is_leaf: LeafPredicate | None
    casting: Casting


@overload
def dtype_preserving_tree_map(f: Callable[[Any], Any], tree: T, **options: Unpack[_Options]) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[[Any, Any], Any], tree: T, other: PyTree, /, **options: Unpack[_Options]
) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[[Any, Any, Any], Any], tree: T, other: PyTree, another: PyTree, /, **options: Unpack[_Options]
) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[..., Any],
    tree: T,
    other: PyTree,
    another: PyTree,
    one_more: PyTree,
    /,
    *rest: PyTree,
    **options: Unpack[_Options],
) -> T: ...
def dtype_preserving_tree_map(
    f: Callable[..., Any], tree: T, *rest: PyTree, is_leaf: LeafPredicate | None = None, casting: Casting = "same_kind"
) -> T:
    """Map over a tree as `jax.tree.map` does, and cast each result to the dtype of the leaf that it came from.

    A result that already has the leaf's dtype and weak type is returned unchanged, which adds nothing to the jaxpr. The
    result for a strongly typed leaf is strongly typed. Python numbers have the dtype that JAX gives them, and NumPy's
    64-bit leaves the canonical one. The result for a leaf without a dtype (a function, a string, a None that `is_leaf`
    selects) is returned unchanged.

    Dtypes decide which casts are allowed, not values, which are not read. As in NumPy, a cast may lose information: the
    array 300 of int32 is 44 in int8, and 1e10 is inf in f16. Only a Python int that does not fit raises.

    Args:
        f: takes a leaf of `tree` and the corresponding leaves of `rest`.
        tree: the tree whose structure and dtypes are preserved.
        *rest: trees of which `tree` is a prefix.
        is_leaf: as in `jax.tree.map`.
        casting: "same_kind" casts by NumPy's rule of that name (bf16 to f32 and back, int to float, but not float to
            int), and any real number to bool; "unsafe" also casts floats to ints.

    Returns:
        A tree of the structure of `tree`.

    Raises:
        TypeError: a result cannot be cast to the leaf's dtype; the message names the key path and both dtypes. Complex
            results for real leaves, and keys for numbers, are never cast.
        OverflowError: a result is a Python int that the leaf's dtype cannot represent.
        ValueError: `casting` has another value, or a tree of `rest` does not fit `tree`.

    >>> import jax.numpy as jnp
    >>> params = {"w": jnp.ones(2, jnp.bfloat16), "n": jnp.array(3)}
    >>> dtype_preserving_tree_map(lambda x: x * jnp.float32(2), params["w"]).dtype
    dtype(bfloat16)
    >>> dtype_preserving_tree_map(lambda x: x / 2, params)
    Traceback (most recent call last):
    TypeError: at n: a result of dtype float32 for a leaf of dtype int32; casting="unsafe" would allow it
    """
    if not callable(f):
        raise TypeError(
            f"dtype_preserving_tree_map takes (f, tree), and f must be a function, found {describe_value(f)}"
        )
    if casting not in ("same_kind", "unsafe"):
        raise ValueError(f"casting must be 'same_kind' or 'unsafe', found {casting!r}")

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    results = [f(*xs) for xs in zip(leaves, *flatten_up_to_each(treedef, rest), strict=True)]
    out: T = treedef.unflatten(cast_each(results, leaves, tree, is_leaf, casting))
    return out
