"""`tree_shared`: which leaves of a tree share memory."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from treekit._base.dtype import issubdtype
from treekit._base.memory import is_deleted
from treekit._base.predicates import is_traced
from treekit._base.types import PyTree
from treekit._names.key_path import flatten_with_distinct_names
from treekit._text.arguments import refuse_class


def tree_shared(tree: PyTree) -> dict[str, list[str]]:
    """Return which leaves of a tree share memory, by name: `{"embed": ["head"], …}`.

    JAX cannot donate one buffer twice: `jax.jit(step, donate_argnums=0)` raises for a tree with such leaves. Replace
    one of them by `jax.numpy.copy` of it, with `tree_at`. Without donation, sharing is harmless and saves memory.
    NumPy arrays share memory if one is a view of the other: writing to one then changes the other.

    Args:
        tree: any pytree; several trees, such as params and a state, as a tuple.

    Returns:
        For the first leaf of each group that shares memory, the names of the others, in the order of the tree, written
        as in `path_mask`. Two JAX arrays share memory if they are one object, or if a buffer of one of their shards is
        also one of the other; NumPy arrays, if an element of one is also one of the other. A JAX array on the CPU may
        share the memory of a NumPy array that it was made from. Empty arrays and leaves that are not arrays share none.

    Raises:
        TypeError: an array is traced, so it has no memory yet; or `tree` is a class.

    >>> import jax.numpy as jnp
    >>> table = jnp.ones((4, 2))
    >>> tree_shared({"embed": table, "bias": jnp.ones(2), "head": {"weight": table}})
    {'embed': ['head.weight']}
    """
    refuse_class(tree, "tree_shared")
    named = flatten_with_distinct_names(tree)
    spans = sorted(span for i, (name, x) in enumerate(named) for span in _spans(i, name, x))
    # A union-find over leaves: NumPy views may overlap only in part, and two of them through a third one.
    parent = list(range(len(named)))

    def first(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    open_spans: list[_Span] = []  # those that may reach into the next one
    for span in spans:
        open_spans = [x for x in open_spans if x.space == span.space and x.stop > span.start]
        for other in open_spans:
            if first(other.leaf) != first(span.leaf) and _overlap(named[other.leaf][1], named[span.leaf][1]):
                low, high = sorted((first(other.leaf), first(span.leaf)))
                parent[high] = low
        open_spans.append(span)
    shared: dict[int, list[str]] = {}
    for i, (name, _) in enumerate(named):
        shared.setdefault(first(i), []).append(name)
    return {first_name: others for first_name, *others in shared.values() if others}


_HOST = "host"


class _Span(NamedTuple):
    """A range of addresses in one memory, and the index of the leaf whose array is there."""

    space: str
    start: int
    stop: int
    leaf: int


def _spans(leaf: int, name: str, x: Any) -> Iterator[_Span]:
    if is_traced(x):
        raise TypeError(f"tree_shared needs arrays in memory, but {name or 'the root'} is traced: call it outside jit")
    if _is_numpy(x) and x.size:
        start, stop = np.lib.array_utils.byte_bounds(x)
        yield _Span(_HOST, start, stop, leaf)
    elif isinstance(x, jax.Array) and x.size and not is_deleted(x):
        is_key = issubdtype(x.dtype, jax.dtypes.prng_key)
        for shard in (jax.random.key_data(x) if is_key else x).addressable_shards:
            start = shard.data.unsafe_buffer_pointer()
            space = _HOST if shard.device.platform == "cpu" else f"{shard.device} {x.sharding.memory_kind}"
            yield _Span(space, start, start + shard.data.nbytes, leaf)


def _overlap(a: Any, b: Any) -> bool:
    """Whether arrays whose ranges of addresses overlap share an element: views may lie in each other's gaps."""
    return not (_is_numpy(a) and _is_numpy(b)) or np.shares_memory(a, b)


def _is_numpy(x: object) -> bool:
    return isinstance(x, np.ndarray)
