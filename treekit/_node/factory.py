"""node_factory: a function that creates a node, checked to survive reconstruction."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from treekit._jax import jtu
from treekit._node.copy_arguments import copy_arguments

T = TypeVar("T")
P = ParamSpec("P")


def node_factory(create: Callable[P, T], /) -> Callable[P, T]:
    """Decorate a function that creates a node, or in a class body a class method: run it once, check what it made.

    Containers among its arguments are copied first. Its result is taken apart, rebuilt around markers and taken apart
    again: what comes back must be the markers, so that `tree_at` and every other rebuilding keep what is put in.

    Args:
        create: the function; it may return an instance of any pytree class, also of one registered by hand. In a class
            body write `@classmethod` above `@node_factory`; without it, it receives the class as well.

    Returns:
        A function of the same signature.

    Raises:
        TypeError: from the call, where rebuilding overwrites a leaf (the message names class and key path), changes a
            static part or raises, or where the result is no pytree node.

    >>> from treekit import node
    >>> @node
    ... class Table:
    ...     squares: list[int]
    ...     @classmethod
    ...     @node_factory
    ...     def up_to(cls, n: int) -> "Table":
    ...         return cls([i * i for i in range(n)])
    >>> Table.up_to(4)
    Table(squares=[0, 1, 4, 9])
    """

    @functools.wraps(create)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        copied_args, copied_kwargs = copy_arguments(args, kwargs)
        # The copies have the types of what they are copies of, which no checker can know.
        out = cast(Callable[..., T], create)(*copied_args, **copied_kwargs)
        _check_rebuilt(out)
        return out

    outside: str = getattr(create, "__qualname__", "").rpartition(".")[0]
    return _Method(make) if outside and not outside.endswith("<locals>") else make


class _Method(Generic[P, T]):
    """A function in a class body, which receives the class with `@classmethod` and without."""

    def __init__(self, make: Callable[P, T]) -> None:
        functools.update_wrapper(self, make)
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._make(*args, **kwargs)

    def __get__(self, instance: object, owner: type[Any] | None = None) -> MethodType:
        # Below @classmethod, Python up to 3.12 comes here with the class for an instance.
        return MethodType(self, instance if isinstance(instance, type) else owner)


def _check_rebuilt(tree: Any) -> None:
    """Raise a TypeError unless a tree, rebuilt around any leaves, holds these leaves and the same static parts."""
    name = type(tree).__qualname__
    if tree is None or jtu.all_leaves([tree]):
        raise TypeError(
            f"a node_factory made a {name}, which is no pytree node: decorate the class with node, or register_node it"
        )
    way_out = (
        "The class runs code of its own when JAX rebuilds it. Register it with treekit.register_node instead, or move "
        "what it prepares into this factory"
    )
    before, treedef = jtu.tree_flatten_with_path(tree)
    markers = [object() for _ in before]
    try:
        after, rebuilt = jtu.tree_flatten_with_path(jtu.tree_unflatten(treedef, markers))
    except Exception as error:
        raise TypeError(
            f"rebuilding a {name} around other leaves raised {type(error).__name__}: {error}. {way_out}"
        ) from error
    leaves = {path: leaf for path, leaf in after}
    for (path, _), marker in zip(before, markers, strict=True):
        if leaves.get(path) is not marker:
            raise TypeError(f"rebuilding a {name} overwrote its leaf {jtu.keystr(path)}. {way_out}")
    if rebuilt != treedef:
        raise TypeError(
            f"rebuilding a {name} changed its static parts or structure, from {treedef} to {rebuilt}. {way_out}"
        )
