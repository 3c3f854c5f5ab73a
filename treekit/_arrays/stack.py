"""Stack, unstack and ravel whole models, including their functions and static fields."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from treekit._arrays.members import members_of
from treekit._base.dtype import OF_NUMPY, cast_like, dtype_of, has_dtype, is_weak, issubdtype, promoted_dtype
from treekit._base.jax import jnp, jtu, lax, untyped
from treekit._base.predicates import can_be_trained, is_array, is_inexact_array
from treekit._base.types import PyTree
from treekit._compare.diff import tree_diff
from treekit._compare.differences import TreeDiff
from treekit._names.key_path import flatten_with_path, leaf_path_text, path_text
from treekit._select.filter import partition
from treekit._text.arguments import refuse_class
from treekit._text.describe import describe, describe_value, type_name

T = TypeVar("T")

_MAY_DIFFER = ("sharding", "weak type")  # differences that stacking allows


def tree_stack(trees: Iterable[T]) -> T:
    """Stack trees of one structure, such as models: each array gets a new first axis, one entry for each tree.

    Use `jax.vmap` over the arrays of the stacked model to train an ensemble. Leaves that are not arrays (functions,
    strings, Python numbers) and static fields must be equal in all trees, and are not changed.

    Args:
        trees: pytrees that differ only in the values of their arrays.

    Returns:
        A tree of the same class; an array of shape `s` and dtype `d` becomes one of shape `(len(trees), *s)` and dtype
        `d`. NumPy arrays become a NumPy array, which may have 64 bits. A `jax.ShapeDtypeStruct` becomes one of that
        shape without a sharding, since JAX decides how a stacked array is sharded.

    Raises:
        TypeError: `trees` is a tree itself, such as a model or a named tuple, not a list of trees.
        ValueError: `trees` is empty, or two trees differ in structure, shapes, dtypes, or in a leaf that is not an
            array; the message lists every difference with its key path. Or one tree has an array where another has a
            `jax.ShapeDtypeStruct`.

    >>> import jax.numpy as jnp
    >>> stacked = tree_stack([{"w": jnp.ones(2), "f": "relu"}, {"w": jnp.zeros(2), "f": "relu"}])
    >>> stacked["w"].shape, stacked["f"]
    ((2, 2), 'relu')
    """
    kind: Any = type(trees)
    is_node = kind not in (list, tuple) and not jtu.all_leaves([trees])
    if is_node or issubclass(kind, (Mapping, str, type, np.ndarray, jax.Array)) or not hasattr(trees, "__iter__"):
        raise TypeError(f"tree_stack takes a list of trees, found {type_name(trees)}: write tree_stack([tree])")
    members = list(trees)
    if not members:
        raise ValueError("tree_stack needs at least one tree")
    arrays, rest = zip(*(partition(member, has_dtype) for member in members), strict=True)
    for i in range(1, len(members)):
        differences = (*tree_diff(arrays[0], arrays[i], values=False), *tree_diff(rest[0], rest[i]))
        if diff := TreeDiff(dict.fromkeys(d for d in differences if d.kind not in _MAY_DIFFER)):
            raise ValueError(
                f"trees[0] and trees[{i}] cannot be stacked: only the values of arrays may differ.\n"
                f"trees[0] | trees[{i}]:\n{diff}"
            )
    paths = [path for path, _ in flatten_with_path(members[0])[0]]
    columns = zip(*map(jtu.tree_leaves, members), strict=True)
    leaves = [_stack_leaves(*args) for args in zip(paths, columns, strict=True)]
    out: T = jtu.tree_structure(members[0]).unflatten(leaves)
    return out


def _stack_leaves(path: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
    """Stack the leaves that all trees have at this key path, which agree in all that `tree_diff` compares."""
    first = leaves[0]
    if not has_dtype(first):
        return first
    # tree_diff compares the dtypes that JAX gives NumPy arrays, and shapes alike with and without values.
    if len({(x.dtype, is_array(x)) for x in leaves}) > 1:
        kinds = [f"{'array' if is_array(x) else 'ShapeDtypeStruct'} of dtype {x.dtype}" for x in leaves]
        raise ValueError(
            f"tree_stack needs leaves of one dtype, and either arrays or ShapeDtypeStructs, at each key path: at "
            f"{path_text(path)} found {', '.join(kinds)}. Cast them, or take jax.eval_shape of all trees"
        )
    if not is_array(first):
        weak = all(map(is_weak, leaves))
        return untyped.ShapeDtypeStruct((len(leaves), *first.shape), first.dtype, weak_type=weak)
    if all(isinstance(x, OF_NUMPY) for x in leaves):
        return np.stack(leaves, dtype=first.dtype)  # with a dtype, as NumPy would change the byte order
    return jnp.stack(leaves)


def tree_unstack(tree: T) -> tuple[T, ...]:
    """Split a stacked tree into its members: the inverse of `tree_stack`.

    Args:
        tree: a pytree whose arrays all have a first axis of one length.

    Returns:
        One tree for each entry of that axis. All of them have the leaves that are not arrays. Arrays on several devices
        stay there, with the sharding of their other axes. None of them shares memory with `tree`.

    Raises:
        ValueError: the tree has no arrays, or the first axes of its arrays differ in length; the message names the key
            path.

    >>> import jax.numpy as jnp
    >>> tree_unstack({"w": jnp.arange(2), "f": "relu"})
    ({'f': 'relu', 'w': Array(0, dtype=int32)}, {'f': 'relu', 'w': Array(1, dtype=int32)})
    """
    leaves, treedef = jtu.tree_flatten(tree)
    shapes: dict[int, tuple[int, ...]] = {i: x.shape for i, x in enumerate(leaves) if has_dtype(x)}
    if not shapes:
        raise ValueError(
            "tree_unstack(tree): tree must have an array, whose first axis has an entry for each member; found "
            f"{describe_value(tree)}"
        )
    (usual, _), *_ = Counter(shape[:1] for shape in shapes.values()).most_common()
    like = next(i for i, shape in shapes.items() if shape[:1] == usual)
    for i, shape in shapes.items():
        if not shape or shape[:1] != usual:
            other = f", at {leaf_path_text(tree, like)} {describe(leaves[like])}" if usual else ""
            raise ValueError(
                "tree_unstack(tree): the arrays of tree must have first axes of the same length, the number of "
                f"members; found at {leaf_path_text(tree, i)} {describe(leaves[i])}{other}"
            )
    # The entries of a NumPy array are views, into which one can write.
    own: list[Any] = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    columns: list[Any] = [members_of(x) if has_dtype(x) else itertools.repeat(x, *usual) for x in own]
    return tuple(map(treedef.unflatten, zip(*columns, strict=True)))


def tree_ravel(tree: T) -> tuple[Any, Callable[[Any], T]]:
    """Ravel the floating-point and complex arrays of a tree, such as a raw model, into one vector.

    Use it for algorithms that need one vector: a Hessian, a solver, a distance between models.

    Args:
        tree: any pytree.

    Returns:
        The vector, of shape `(n,)` and the widest dtype of the arrays (JAX's default float if it has no arrays), and a
        function that maps such a vector back to a tree like `tree`. It restores the shape of each array, and the dtype
        that JAX gives it: f32 for f64 of NumPy, unless x64 is enabled. If the tree has complex arrays too, real arrays
        get the real parts. All other leaves are those of `tree`.

    Raises:
        TypeError: `tree` is a class, or has a NumPy array of bf16 or another dtype that NumPy does not know.
        ValueError: the function is called with an array of another shape.
        TypeError: the function is called with an array that cannot be cast to the dtypes of the leaves, such as a
            complex one for real leaves.

    >>> import jax.numpy as jnp
    >>> flat, unravel = tree_ravel({"w": jnp.ones((1, 2)), "b": jnp.zeros(1, jnp.bfloat16), "f": "relu"})
    >>> flat
    Array([0., 1., 1.], dtype=float32)
    >>> unravel(flat + 1)
    {'b': Array([1], dtype=bfloat16), 'f': 'relu', 'w': Array([[2., 2.]], dtype=float32)}
    """
    refuse_class(tree, "tree_ravel")
    _check_no_foreign_floats(tree)
    leaves, treedef = jtu.tree_flatten(tree)
    places = [i for i, x in enumerate(leaves) if is_inexact_array(x)]
    arrays = [leaves[i] for i in places]
    dtype = promoted_dtype(*arrays) if arrays else dtype_of(0.0)
    flat = jnp.concatenate([jnp.zeros(0, dtype), *(lax.convert_element_type(jnp.ravel(x), dtype) for x in arrays)])
    size = flat.size
    # Only shapes and dtypes are needed from here on, so the arrays may be donated.
    likes: list[Any] = [untyped.ShapeDtypeStruct(x.shape, dtype_of(x)) if is_inexact_array(x) else x for x in leaves]

    def unravel(flat: Any) -> T:
        if np.shape(flat) != (size,):
            raise ValueError(
                f"unravel(flat): flat must be an array of shape ({size},) for this tree; found {describe_value(flat)}"
            )
        parts, start = list(likes), 0
        for i in places:
            stop = start + math.prod(likes[i].shape)
            part, start = jnp.reshape(flat[start:stop], likes[i].shape), stop
            # A real array in a complex vector gets the real part. In a real vector, a complex number is a mistake.
            is_in_complex = jnp.iscomplexobj(part) and issubdtype(dtype, jnp.complexfloating)
            is_real = not issubdtype(likes[i].dtype, jnp.complexfloating)
            parts[i] = cast_like(jnp.real(part) if is_in_complex and is_real else part, likes[i])
        out: T = treedef.unflatten(parts)
        return out

    return flat, unravel


def _check_no_foreign_floats(tree: PyTree) -> None:
    """Raise a TypeError for a NumPy array of bf16 or float8, which `is_inexact_array` does not select."""
    for i, x in enumerate(jtu.tree_leaves(tree)):
        if can_be_trained(x) and not is_inexact_array(x):
            raise TypeError(
                f"tree_ravel would leave out the array at {leaf_path_text(tree, i)}, {describe(x)}: to NumPy, its "
                "dtype is not a floating-point one, so treekit.is_inexact_array and Equinox's do not select it. Make "
                "it an array of JAX: jax.numpy.asarray(x)"
            )
