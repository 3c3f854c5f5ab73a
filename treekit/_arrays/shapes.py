"""Do the leaves of two trees have the same shapes, or shapes that can be broadcast?"""

from treekit._base.dtype import dtype_of, shape_of, stands_for_array
from treekit._base.jax import jtu
from treekit._base.types import LeafPredicate, PyTree
from treekit._compare.prefix import flatten_up_to_each
from treekit._names.key_path import leaf_path_text


def check_shapes(
    like: PyTree,
    tree: PyTree,
    is_leaf: LeafPredicate | None = None,
    *,
    broadcast: bool = False,
    names: tuple[str, str] = ("tree", "rest[0]"),
) -> None:
    """Raise a ValueError if a leaf of `tree` has another shape than the leaf of `like`; the message names the key path.

    Args:
        like: a tree, which is a prefix of `tree`.
        tree: any tree.
        is_leaf: as in `jax.tree.map`.
        broadcast: also allow shapes that can be broadcast to those of `like`.
        names: what the caller calls the two trees.
    """
    leaves, treedef = jtu.tree_flatten(like, is_leaf=is_leaf)
    for i, pair in enumerate(zip(leaves, *flatten_up_to_each(treedef, [tree], names), strict=True)):
        want, have = map(_shape, pair)
        if want is None or have is None or want == have or (broadcast and can_be_broadcast(have, want)):
            continue
        raise ValueError(f"at {leaf_path_text(like, i, is_leaf)}: shape {have} for a leaf of shape {want}")


def _shape(x: object) -> tuple[int, ...] | None:
    """Return the shape of an array, a number, or what stands for an array; None for other leaves."""
    if dtype_of(x) is not None:
        return getattr(x, "shape", ())
    return shape_of(x) if stands_for_array(x) else None


def can_be_broadcast(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    """Whether an array of one shape can be broadcast to another shape."""
    return len(have) <= len(want) and all(n in (1, m) for n, m in zip(have[::-1], want[::-1], strict=False))
