"""Who owns the memory of an array? JAX deletes what is donated, and NumPy's arrays may change."""

import contextlib
import types
import weakref
from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer

from treekit._base.dtype import OF_NUMPY, is_concrete
from treekit._base.functions import parts_of
from treekit._base.jax import jnp, jtu
from treekit._base.tree import reachable


def unshared(arrays: Iterable[Any], others: Iterable[Any] = ()) -> list[Any]:
    """Return arrays, with a copy of each that occurs twice or among `others`: JAX can donate an array only once."""
    seen = set(map(id, others))
    out: list[Any] = []
    for x in arrays:
        out.append(copied(x) if id(x) in seen else x)
        seen.add(id(x))
    return out


def copied(x: Any) -> Any:
    """Return a copy of an array, also of one of NumPy; anything else, such as a tracer, unchanged."""
    if isinstance(x, OF_NUMPY):
        return x.copy()
    return jnp.copy(x) if is_concrete(x) else x


def owned(x: Any) -> Any:
    """Return an array of NumPy as one of JAX in memory of its own, which its user may change; anything else unchanged.

    On CPUs, `jnp.asarray` shares the memory.
    """
    return jnp.array(x) if isinstance(x, OF_NUMPY) else x


def is_deleted(x: object) -> bool:
    """Whether an array has been deleted, for example by donation."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted()


# Not an attribute of a transformation, nor in its closure: see "Closures" in `transformation`.
_CLOSED_OVER: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def closed_over(f: Any) -> list[Any]:
    """Return the arrays that belong to a function: in its closure, its defaults, and what its code names in its module.

    They are looked up once, as they are then.
    """
    with contextlib.suppress(KeyError, TypeError):  # one that cannot be a key
        return _CLOSED_OVER[f]
    arrays = [x for x in reachable(f, _referred_to) if is_concrete(x)]
    with contextlib.suppress(TypeError):
        _CLOSED_OVER[f] = arrays
    return arrays


_CODE: Any = (types.FunctionType, types.ModuleType, type)


def _referred_to(x: Any) -> list[Any]:
    """Return what an object refers to: a function also to what its code names in its module, a tree to its leaves."""
    parts = parts_of(x)
    if isinstance(x, types.FunctionType):
        named = [x.__globals__.get(name) for name in x.__code__.co_names]
        parts += [y for y in named if not isinstance(y, _CODE)]
    if not parts:
        with contextlib.suppress(Exception):  # of a class that cannot be flattened
            return [] if jtu.all_leaves([x]) else jtu.tree_leaves(x)
    return parts
