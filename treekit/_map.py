"""jax.tree.map whose results keep the dtype of the leaf they came from."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from treekit._dtype import cast_like, dtype_of
from treekit._jax import jtu
from treekit._tree import flatten_up_to_each
from treekit._types import LeafPredicate

T = TypeVar("T")


Casting = Literal["same_kind", "unsafe"]


@overload
def dtype_preserving_tree_map(
    f: Callable[[Any], Any], tree: T, *, is_leaf: LeafPredicate | None = None, casting: Casting = "same_kind"
) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[[Any, Any], Any],
    tree: T,
    other: Any,
    /,
    *,
    is_leaf: LeafPredicate | None = None,
    casting: Casting = "same_kind",
) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[[Any, Any, Any], Any],
    tree: T,
    other: Any,
    another: Any,
    /,
    *,
    is_leaf: LeafPredicate | None = None,
    casting: Casting = "same_kind",
) -> T: ...
@overload
def dtype_preserving_tree_map(
    f: Callable[..., Any],
    tree: T,
    other: Any,
    another: Any,
    one_more: Any,
    /,
    *rest: Any,
    is_leaf: LeafPredicate | None = None,
    casting: Casting = "same_kind",
) -> T: ...
def dtype_preserving_tree_map(
    f: Callable[..., Any],
    tree: T,
    *rest: Any,
    is_leaf: LeafPredicate | None = None,
    casting: Casting = "same_kind",
) -> T:
    """`jax.tree.map` whose every result has the dtype of the leaf of `tree` it came from.

    A result that has the leaf's dtype and weak type already is returned untouched: nothing is added to the jaxpr. The
    result of a strong leaf is strong. Python numbers stand for the dtype JAX gives them, NumPy's 64-bit leaves for the
    canonical one. A leaf without a dtype (a function, a string, None taken as a leaf) asks nothing of its result.

    Args:
        f: takes a leaf of `tree` and the corresponding leaves of `rest`.
        tree: the tree whose structure and dtypes are kept.
        *rest: trees that have the structure of `tree` or that it is a prefix of.
        is_leaf: as in `jax.tree.map`.
        casting: "same_kind" casts as NumPy's rule of that name does (bf16 to f32 and back, int to float, not float to
            int), and any real number to bool; "unsafe" casts a float to an int too.

    Returns:
        A tree of the structure of `tree`.

    Raises:
        TypeError: a result may not be cast to the leaf's dtype. A complex result for a real leaf and a key for a number
            never may. Names the key path and both dtypes.
        OverflowError: a result is a Python int that the leaf's dtype cannot hold.
        ValueError: `casting` has another name, or a tree of `rest` does not fit `tree`.

    >>> import jax.numpy as jnp
    >>> params = {"w": jnp.ones(2, jnp.bfloat16), "n": jnp.array(3)}
    >>> dtype_preserving_tree_map(lambda x: x * jnp.float32(2), params["w"]).dtype
    dtype(bfloat16)
    >>> dtype_preserving_tree_map(lambda x: x / 2, params)
    Traceback (most recent call last):
    TypeError: at ['n']: a result of dtype float32 for a leaf of dtype int32; casting="unsafe" would allow it
    """
    if casting not in ("same_kind", "unsafe"):
        raise ValueError(f"casting must be 'same_kind' or 'unsafe', found {casting!r}")

    leaves, treedef = jtu.tree_flatten(tree, is_leaf=is_leaf)
    results = [f(*xs) for xs in zip(leaves, *flatten_up_to_each(treedef, rest), strict=True)]
    out: T = treedef.unflatten(cast_each(results, leaves, tree, is_leaf, casting))
    return out


def cast_each(
    results: list[Any],
    likes: list[Any],
    tree: Any,
    is_leaf: LeafPredicate | None = None,
    casting: Literal["same_kind", "unsafe"] = "same_kind",
) -> list[Any]:
    """Results in the dtypes of `likes`, one for each leaf of `tree`, whose key paths an error names."""
    out: list[Any] = []
    try:
        out.extend(cast_like(result, like, casting) for result, like in zip(results, likes, strict=True))
    except (TypeError, OverflowError) as error:
        # The path is made only for an error: with_path would cost every call what one call in a thousand needs.
        path = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)[0][len(out)][0]
        raise type(error)(f"at {jtu.keystr(path) or 'the root'}: {error}") from None
    return out


def cast_tree_like(
    like: T,
    tree: Any,
    is_leaf: LeafPredicate | None = None,
    casting: Casting = "same_kind",
) -> T:
    """`tree`, with the dtypes of `like`."""

    def take(_: Any, x: Any) -> Any:
        return x

    return dtype_preserving_tree_map(take, like, tree, is_leaf=is_leaf, casting=casting)


def check_shapes(like: Any, tree: Any, is_leaf: LeafPredicate | None = None, *, broadcast: bool = False) -> None:
    """Raise a ValueError where a leaf of `tree` has another shape than that of `like`.

    Args:
        like: a tree.
        tree: a tree that `like` has the structure of, or is a prefix of.
        is_leaf: as in `jax.tree.map`.
        broadcast: allow a shape that can be broadcast to the other.
    """
    leaves, treedef = jtu.tree_flatten(like, is_leaf=is_leaf)
    for i, pair in enumerate(zip(leaves, *flatten_up_to_each(treedef, [tree]), strict=True)):
        want, have = (getattr(x, "shape", ()) for x in pair)
        if want == have or (broadcast and _can_be_broadcast(have, want)) or any(dtype_of(x) is None for x in pair):
            continue
        path = jtu.tree_flatten_with_path(like, is_leaf=is_leaf)[0][i][0]
        raise ValueError(f"at {jtu.keystr(path) or 'the root'}: shape {have} for a leaf of shape {want}")


def _can_be_broadcast(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return len(have) <= len(want) and all(n in (1, m) for n, m in zip(have[::-1], want[::-1], strict=False))
