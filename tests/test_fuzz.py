"""All verbs on one random tree after the other: a few in each run, more with FUZZ=100000 in the environment."""

import os
from typing import Any

import jax
from hypothesis import given, settings
from hypothesis import strategies as st

import treekit as tk

from .trees import follow, identical, places, prefixes, trees, untyped


# As many as are asked for; the seed is in what pytest prints of a failure, and --hypothesis-seed sets it.
@settings(max_examples=int(os.environ.get("FUZZ", "25")), database=None)
@given(tree=trees(), data=st.data())
def test_the_verbs_agree_on_any_tree(tree: Any, data: st.DataObject) -> None:
    spec = data.draw(prefixes(tree, st.booleans()))
    kept, dropped = tk.partition(tree, spec)
    assert identical(tk.combine(kept, dropped), tree)
    assert identical(tk.combine(dropped, kept), tree)
    assert identical(tk.filter(tree, spec), kept)
    assert identical(tk.filter(tree, spec, inverse=True), dropped)
    assert identical(tk.filter_arrays(tree), tk.filter(tree, tk.is_array))

    mapped = tk.dtype_preserving_tree_map(lambda leaf: leaf, tree)  # 64 bits of NumPy's are what JAX makes of them
    assert untyped.tree.structure(mapped) == untyped.tree.structure(tree)
    assert identical(tk.dtype_preserving_tree_map(lambda leaf: leaf, mapped), mapped)
    assert not tk.tree_diff(tree, tree)
    mended = jax.tree.map(lambda leaf: leaf, tree)
    tk.assert_trees_same(mended, tree)

    path = data.draw(st.sampled_from(sorted(places(tree), key=len)))
    node = follow(path, tree)
    if not _holds_empty_tuple(node):  # it is one object wherever it stands, so no place is meant by it
        new = object()
        changed = tk.tree_at(lambda t: follow(path, t), tree, new, is_leaf=_is_none)
        assert follow(path, changed) is new
        assert identical(tk.tree_at(lambda t: follow(path, t), changed, node), tree)
        assert [difference.path for difference in tk.tree_diff(tree, changed)] == [
            untyped.tree_util.keystr(path, simple=True, separator=".")
        ]


def _holds_empty_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and (not node or any(_holds_empty_tuple(child) for child in node))


def _is_none(x: Any) -> bool:
    return x is None
