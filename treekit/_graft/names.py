"""What files give: mappings that are not pytrees, dicts of names and arrays, and the tensors of other libraries."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from treekit._base.dtype import resolve_array, stands_for_array
from treekit._base.jax import jtu
from treekit._base.key_path import path_name
from treekit._base.tree import is_mapping
from treekit._base.types import KeyPath, PyTree


def with_dicts(tree: PyTree) -> PyTree:
    """Return a tree in which mappings that JAX takes for leaves, such as the files of NumPy and h5py, are dicts."""
    if not any(map(is_mapping, jtu.tree_leaves(tree))):
        return tree
    return jtu.tree_map(_with_dicts, tree)


def _with_dicts(x: PyTree) -> Any:
    return {key: with_dicts(x[key]) for key in x} if is_mapping(x) else x


class Nested(dict[str, Any]):
    """The names of a dict of names and arrays, as nested dicts."""


class Entry(NamedTuple):
    """A value in such a dict, with its real key path."""

    path: KeyPath
    value: PyTree


def has_paths(x: object) -> bool:
    """Whether `x` is a dict of names and arrays, such as a file gives: of strings, some of which have dots."""
    return is_mapping(x) and all(isinstance(key, str) for key in x) and any("." in key for key in x)


def nested(names: Mapping[str, Any], path: KeyPath) -> Nested:
    out = Nested()
    for below, x in jtu.tree_flatten_with_path(names, is_leaf=lambda y: y is not names)[0]:
        name = path_name(below)
        *above, last = name.split(".")
        node: Any = out
        for part in above:
            node = node.setdefault(part, Nested()) if isinstance(node, Nested) else None
        is_free = isinstance(node, Nested) and last not in node
        # Where both "a" and "a.b" are names, which no optimizer state has, the second is not nested.
        (node if is_free else out)[last if is_free else name] = Entry((*path, *below), x)
    return out


def as_array(x: object, name: str) -> Any:
    """Return what stands for an array as that array, and the tensor of another library as a NumPy array."""
    if stands_for_array(x) or not hasattr(x, "__array__"):
        return resolve_array(x)
    try:
        array: Any = np.asarray(x)
    except Exception as error:
        error.add_note(f"This happened when graft converted the {type(x).__name__} at {name} to a NumPy array")
        raise
    if array.dtype.kind == "V":
        raise TypeError(
            f"at {name}: the old array has the dtype {array.dtype}, which is not one of numbers. np.load gives it for "
            "bf16 and other dtypes that NumPy does not know: x.view(jnp.bfloat16) is the array again"
        )
    return array
