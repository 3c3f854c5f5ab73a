"""JAX's modules as type checkers need them, since JAX's own types are incomplete."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import jax

from treekit._base.types import IsLeaf, KeyPath, PyTree, PyTreeDef


class _TreeUtil(Protocol):
    def all_leaves(self, iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool: ...
    def register_pytree_with_keys(
        self, cls: Any, with_keys: Callable[..., Any], unflatten: Any, flatten: Any, /
    ) -> None: ...
    def keystr(self, keys: KeyPath) -> str: ...
    def tree_flatten(self, tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]: ...
    def tree_flatten_with_path(
        self, tree: PyTree, is_leaf: IsLeaf = None
    ) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]: ...
    def tree_leaves(self, tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]: ...
    def tree_map(self, f: Callable[..., Any], tree: PyTree, *rest: PyTree, is_leaf: IsLeaf = None) -> Any: ...
    def tree_structure(self, tree: PyTree, is_leaf: IsLeaf = None) -> PyTreeDef: ...


jtu = cast(_TreeUtil, jax.tree_util)
# Most of these functions have a parameter of an unknown type, or do not accept leaves that the caller has checked.
jnp: Any = jax.numpy
lax: Any = jax.lax
untyped: Any = jax
