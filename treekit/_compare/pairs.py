"""Walk through two trees together: where do their nodes differ?"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from treekit._base.dtype import dtype_of
from treekit._base.flax import is_variable
from treekit._base.jax import jtu
from treekit._base.tree import children_of, is_mapping, one_level
from treekit._base.types import KeyPath, PyTree
from treekit._compare.differences import NodeKind
from treekit._names.key_path import key_name
from treekit._text.describe import count, describe_types, describe_values

_KEYS = 24  # listed at most


class Pair(NamedTuple):
    """A key path at which two trees have leaves, which are not compared yet, or at which they differ.

    Attributes:
        path: the key path.
        kind: how the trees differ; None for two leaves.
        a: what the first tree has there: a leaf, a node, the keys of a node, or a static value.
        b: the same for the second tree.
    """

    path: KeyPath
    kind: NodeKind | None
    a: PyTree
    b: PyTree

    def described(self) -> tuple[str, str]:
        """Describe the difference."""
        if self.kind == "static value":
            return describe_values(self.a, self.b)
        return (describe_keys if self.kind == "structure" else describe_types)(self.a, self.b)


def equal(a: object, b: object) -> bool:
    """Whether JAX takes two static values for equal."""
    with contextlib.suppress(Exception):  # the truth value of an array raises, and a user's __eq__ may raise anything
        return a is b or bool(a == b)
    return False


def walk_pairs(
    a: PyTree, b: PyTree, stop: Callable[[PyTree, PyTree], bool], *, same: Callable[[Any, Any], bool] = equal
) -> Iterator[Pair]:
    """Yield where two trees differ in their nodes, and each pair of leaves, in the order of `a`.

    This is a loop, so that trees may be as deep as JAX allows, which has about Python's recursion limit.

    Args:
        a: any pytree.
        b: any pytree.
        stop: whether to skip this pair of subtrees.
        same: compares static values; by default as JAX does, to which 1 == 1.0.
    """
    pending: list[tuple[KeyPath, PyTree, PyTree]] = [((), a, b)]
    while pending:
        path, a, b = pending.pop()
        if stop(a, b):
            continue
        a_is_leaf, b_is_leaf = jtu.all_leaves([a]), jtu.all_leaves([b])
        if a_is_leaf and b_is_leaf:
            yield Pair(path, None, a, b)
        elif (a is None and dtype_of(b) is not None) or (b is None and dtype_of(a) is not None):
            yield Pair(path, "array against None", a, b)
        elif a_is_leaf or b_is_leaf or type(a) is not type(b):
            yield Pair(path, "type", a, b)
        else:
            a_children, b_children = children_of(a), children_of(b)
            have_same_keys = a_children.keys() == b_children.keys()
            if not have_same_keys:
                yield Pair(path, "structure", a_children, b_children)
            # The static part of a mapping is its keys, whose difference has just been yielded.
            may_differ_in_static_part = have_same_keys or not is_mapping(a)
            if same is equal:  # as JAX decides, which compares both structures at once, and faster
                may_differ_in_static_part &= one_level(a)[1] != one_level(b)[1]
            if may_differ_in_static_part:
                yield from _static_differences(path, a, b, a_children, same)
            for key in reversed([key for key in a_children if key in b_children]):
                # A Flax variable and its value have one name.
                below = path if is_variable(a) else (*path, key)
                pending.append((below, a_children[key], b_children[key]))


def _static_differences(
    path: KeyPath, a: Any, b: Any, children: Iterable[Any], same: Callable[[Any, Any], bool]
) -> Iterator[Pair]:
    """Yield the fields that differ, if the class has named fields; else the whole static part."""
    a_static, b_static = (None if (data := one_level(x)[1].node_data()) is None else data[1] for x in (a, b))
    if same(a_static, b_static):
        return
    dynamic = {getattr(key, "name", None) for key in children}
    names = [f.name for f in dataclasses.fields(a)] if dataclasses.is_dataclass(a) else []
    fields = [(name, getattr(a, name, None), getattr(b, name, None)) for name in names if name not in dynamic]
    different = [
        Pair((*path, jax.tree_util.GetAttrKey(name)), "static value", x, y) for name, x, y in fields if not same(x, y)
    ]
    yield from different or [Pair(path, "static value", a_static, b_static)]


def describe_keys(a: Collection[Any], b: Collection[Any]) -> tuple[str, str]:
    """List the keys of the children of two nodes; if there are many, those that the other node does not have."""

    def described(keys: Collection[Any], others: Collection[Any]) -> str:
        if not keys:
            return "no children"
        children = count(len(keys), "child", "children")
        if len(keys) <= _KEYS:
            return f"{children}: {', '.join(map(key_name, keys))}"
        own = [key_name(key) for key in keys if key not in others]
        rest = f" and {len(own) - _KEYS} more" if len(own) > _KEYS else ""
        return children + (f", among them {', '.join(own[:_KEYS])}{rest}" if own else "")

    return described(a, b), described(b, a)
