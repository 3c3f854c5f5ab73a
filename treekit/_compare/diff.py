"""`tree_diff`: list every difference between two trees, each with its name."""

from typing import SupportsFloat

from treekit._compare.differences import Difference, TreeDiff
from treekit._compare.leaves import compare_leaves, equal_objects, plainly_equal
from treekit._compare.pairs import walk_pairs
from treekit._names.key_path import path_name
from treekit._text.describe import count


def tree_diff(
    a: object, b: object, *, values: bool = True, rtol: SupportsFloat = 0.0, atol: SupportsFloat = 0.0
) -> TreeDiff:
    """List every difference between two trees.

    The kinds are: "type" (of a leaf or a node, even if two classes have one name; a Python number and an array have two
    types), "structure" (other keys, or another number of children), "static value", "array against None", "shape",
    "dtype", "weak type", "sharding" (over devices, or another kind of memory) and "value".

    A NumPy array is compared with a JAX array as JAX would convert it, as in jit: f64 becomes f32, unless x64 is
    enabled. Two NumPy arrays are compared by their own dtypes.

    NaN is equal to NaN, whatever its bits, and 0.0 to -0.0. Without tolerances, and if there is a NaN, the two parts of
    a complex number are compared one by one.

    Values are compared on the host, to which sharded arrays are copied. Of an array that spans processes, this process
    may have only a part. Such arrays are compared by shape, dtype and sharding, and listed as a difference in "value"
    that says so, unless both are the same object. Pass `values=False` to leave values out.

    Args:
        a: any pytree.
        b: any pytree.
        values: compare the values of leaves too. Leaves whose values are not known (tracers, ShapeDtypeStructs) are
            compared by shape and dtype only.
        rtol: relative tolerance for inexact values, as in `numpy.isclose`.
        atol: absolute tolerance for inexact values.

    Returns:
        A tuple in the order of `a`. Each difference has a `path` (its name, such as "layers.0.weight"), a `kind`, and a
        description of the `left` and the `right` side; of numbers that differ also the `largest_absolute` and the
        `largest_relative` difference: with these as `atol` or `rtol`, none would differ, up to rounding.

    >>> import numpy as np
    >>> print(tree_diff({"w": np.ones(2), "b": None}, {"w": np.ones(3), "b": np.zeros(2)}))
    b  array against None  None | f64[2](numpy)
    w  shape               f64[2](numpy) | f64[3](numpy)
    """
    pairs = list(walk_pairs(a, b, plainly_equal, same=equal_objects))
    leaves = [(pair.a, pair.b) for pair in pairs if pair.kind is None]
    of_leaves = iter(compare_leaves(leaves, values, float(rtol), float(atol)))
    differences: list[Difference] = []
    for pair in pairs:
        if pair.kind is None:
            differences += [Difference(path_name(pair.path), *difference) for difference in next(of_leaves)]
        else:
            differences.append(Difference(path_name(pair.path), pair.kind, *pair.described()))
    return TreeDiff(differences)


def assert_trees_same(
    a: object, b: object, *, values: bool = True, rtol: SupportsFloat = 0.0, atol: SupportsFloat = 0.0
) -> None:
    """Raise an AssertionError that lists every difference between two trees.

    Args:
        a: any pytree.
        b: any pytree.
        values: as in `tree_diff`.
        rtol: as in `tree_diff`.
        atol: as in `tree_diff`.

    Raises:
        AssertionError: the trees differ.

    >>> assert_trees_same([1, 2], [1, 3])
    Traceback (most recent call last):
    AssertionError: the trees differ (1 difference, left | right):
    1  value  2 | 3  off by up to 1, relative 0.333
    """
    diff = tree_diff(a, b, values=values, rtol=rtol, atol=atol)
    if diff:
        raise AssertionError(f"the trees differ ({count(len(diff), 'difference')}, left | right):\n{diff}")
