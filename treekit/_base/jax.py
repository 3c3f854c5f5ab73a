"""JAX as type checkers need it, since its own types are incomplete; and what not every release of JAX has.

No other file asks whether a name is missing. What a release does not have is absent there, and is not copied: no leaf
is a reference, and arrays have no memory spaces.
"""

import functools
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol, TypeGuard, cast

import jax
from jax.core import Tracer

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
registry: Any = untyped.tree_util.default_registry

P: Any = jax.sharding.PartitionSpec

_Ref: Any = getattr(jax, "Ref", ())  # nothing is an instance of ()
new_ref: Any = getattr(jax, "new_ref", None)


def _moved(name: str, before: str, now: Any) -> Any:
    """Return a function of a module of JAX that was in another one before."""
    return getattr(now if hasattr(now, name) else import_module(before), name)


reshard: Any = _moved("reshard", "jax.experimental.shard", jax.sharding)


def is_ref(x: object) -> TypeGuard[Any]:  # the items of a `jax.Ref` have no types
    """Whether `x` is a reference to an array: a `jax.Ref`, or a variable of Flax that is a leaf."""
    cls: Any = type(x)
    return _may_be_class_of_refs(cls) and (isinstance(x, _Ref) or is_hijax_variable(x))


def has_ref(leaves: list[Any]) -> bool:
    """Whether a reference is among some leaves. Most have a few classes, which are asked first."""
    return any(map(_may_be_class_of_refs, {*map(type, leaves)})) and any(map(is_ref, leaves))


def ref_like(x: Any, value: Any = None) -> Any:
    """Return a new reference of the kind of `x`, to an array, or to the value of `x`."""
    if is_hijax_variable(x):
        return x.copy() if value is None else x.copy(value)
    return new_ref(jnp.asarray(x[...] if value is None else value))


def is_hijax_variable(x: object) -> bool:
    """Whether `x` is a variable of Flax that is a leaf."""
    cls: Any = type(x)
    return _is_hijax_class(cls)


# These are asked of each leaf, so answers are kept; classes that are not used any more are forgotten.
@functools.lru_cache(1_000)
def _may_be_class_of_refs(cls: Any) -> bool:
    """Whether an instance of a class may be a reference. To ask JAX of each instance takes ten times as long."""
    return issubclass(cls, _Ref) or issubclass(cls, Tracer) or _is_hijax_class(cls)


@functools.lru_cache(1_000)
def _is_hijax_class(cls: Any) -> bool:  # treekit does not import Flax
    return bool(cls.__name__ == "HijaxVariable" and cls.__module__.startswith("flax."))


def memory_space(x: Any) -> Any:
    """Return the memory space of an array, also of a traced one: that of the device, or of its host."""
    return getattr(untyped.typeof(x), "memory_space", None)


def varying_axes(x: Any) -> frozenset[str]:
    """Return the axes of a mesh along which an array differs between devices, as `shard_map` knows it."""
    kind = x if isinstance(x, jax.ShapeDtypeStruct) else untyped.typeof(x)
    axes: Any = getattr(getattr(kind, "manual_axis_type", None), "varying", None) or getattr(kind, "vma", None)
    return frozenset(axes or ())


def varying_over(x: Any, axes: Iterable[str]) -> Any:
    """Return an array that counts as different between devices along these axes too."""
    missing = tuple(sorted({*axes} - varying_axes(x)))
    if not missing:
        return x
    return lax.pcast(x, missing, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, missing)
