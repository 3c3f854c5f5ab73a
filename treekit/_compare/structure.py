"""Where do two trees differ in structure, shape, or kind of dtype? Values are not compared."""

import itertools
import operator
from collections.abc import Iterator
from typing import Any

from treekit._base.dtype import dtype_of, issubdtype, shape_of
from treekit._base.jax import jnp
from treekit._base.types import PyTree
from treekit._compare.differences import Difference, TreeDiff
from treekit._compare.pairs import Pair, walk_pairs
from treekit._names.key_path import path_name
from treekit._text.describe import describe


def structure_diff(a: PyTree, b: PyTree) -> TreeDiff:
    """List where two trees differ in structure, shape, or kind of dtype, as JAX compares them.

    Args:
        a: a tree, such as the state of an optimizer.
        b: what it should be like, such as what `init` makes. Its integers may be floats in `a`, as a count may be.
    """
    return TreeDiff(itertools.chain(*map(_compare, walk_pairs(a, b, operator.is_))))


def _compare(pair: Pair) -> Iterator[Difference]:
    path = path_name(pair.path)
    kind, wanted = _kind_of_dtype(pair.a), _kind_of_dtype(pair.b)
    became_float = kind == jnp.floating and wanted == jnp.integer
    if pair.kind is not None:
        yield Difference(path, pair.kind, *pair.described())
    elif kind != wanted and not became_float:
        yield Difference(path, "dtype", describe(pair.a), describe(pair.b))
    elif shape_of(pair.a) != shape_of(pair.b):
        yield Difference(path, "shape", describe(pair.a), describe(pair.b))


def _kind_of_dtype(x: object) -> Any:
    dtype = dtype_of(x)
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((kind for kind in kinds if issubdtype(dtype, kind)), dtype)
