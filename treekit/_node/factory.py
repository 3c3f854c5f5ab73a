"""`node_factory`: check that JAX can rebuild the result of a function that creates nodes."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from treekit._base.jax import jtu
from treekit._base.tree import children_of
from treekit._base.types import KeyPath, PyTree
from treekit._names.key_path import path_text
from treekit._node.copy_arguments import copy_arguments
from treekit._text.arguments import RUNS_ITS_CODE
from treekit._text.describe import describe_error

T = TypeVar("T")
P = ParamSpec("P")


def node_factory(create: Callable[P, T], /) -> Callable[P, T]:
    """Decorate a function, or a class method, that creates a node: copy its arguments, and check its result.

    Containers among the arguments are copied first. The result is flattened, rebuilt with markers instead of its
    leaves, and flattened again: if that returns the markers, `tree_at` and JAX can rebuild it with new leaves.

    Args:
        create: the function, which may return an instance of any pytree class. In a class body write `@classmethod`
            above `@node_factory`; the function receives the class even without it.

    Returns:
        A function of the same signature.

    Raises:
        TypeError: `create` is a `classmethod`. Or, raised by the call, if rebuilding the result overwrites a leaf (the
            message names class and key path), changes a static part or raises, or if the result is not a pytree node.

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

    if isinstance(create, (classmethod, staticmethod)):
        raise TypeError("write @classmethod above @node_factory, not below it")

    @functools.wraps(create)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        copied_args, copied_kwargs = copy_arguments(args, kwargs)
        # The copies have the types of the originals, but checkers cannot know that.
        out = cast(Callable[..., T], create)(*copied_args, **copied_kwargs)
        _check_rebuilt(out)
        return out

    outside: str = getattr(create, "__qualname__", "").rpartition(".")[0]
    return _Method(make) if outside and not outside.endswith("<locals>") else make


class _Method(Generic[P, T]):
    """A function in a class body, which receives the class with or without `@classmethod`: hence a descriptor."""

    def __init__(self, make: Callable[P, T]) -> None:
        functools.update_wrapper(self, make)
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._make(*args, **kwargs)

    def __get__(self, instance: object, owner: type[Any] | None = None) -> MethodType:
        # Below @classmethod, Python up to 3.12 passes the class as `instance`.
        return MethodType(self, instance if isinstance(instance, type) else owner)


def _check_rebuilt(tree: PyTree, above: KeyPath = ()) -> None:
    """Raise a TypeError unless a tree, rebuilt around other leaves, has these leaves and the same static parts."""
    name = type(tree).__qualname__
    if tree is None or jtu.all_leaves([tree]):
        raise TypeError(
            f"a node_factory returned an object of type {name}, which is not a pytree node: use node or "
            "register_node on the class"
        )
    if fault := _fault_of_rebuilding(tree, above):
        for key, child in children_of(tree).items():  # the class at fault may be that of a node inside
            if child is not None and not jtu.all_leaves([child]):
                _check_rebuilt(child, (*above, key))
        text, cause = fault
        raise TypeError(f"rebuilding {name} {text}. {RUNS_ITS_CODE}, or move that code into this factory") from cause


def _fault_of_rebuilding(tree: PyTree, above: KeyPath) -> tuple[str, Exception | None] | None:
    """Return what is wrong with a tree that is rebuilt around other leaves, and what it raised."""
    before, treedef = jtu.tree_flatten_with_path(tree)
    markers = [object() for _ in before]
    try:
        after, rebuilt = jtu.tree_flatten_with_path(treedef.unflatten(markers))
    except Exception as error:
        return f"around other leaves raised {describe_error(error)}", error
    # By path, unless a class gives several children one.
    are_distinct = len({path for path, _ in before}) == len(before)
    leaves = {path if are_distinct else i: leaf for i, (path, leaf) in enumerate(after)}
    for i, ((path, _), marker) in enumerate(zip(before, markers, strict=True)):
        if leaves.get(path if are_distinct else i) is not marker:
            return f"overwrote its leaf {path_text((*above, *path))}", None
    if rebuilt != treedef:
        return f"changed its static parts or structure, from {treedef} to {rebuilt}", None
    return None
