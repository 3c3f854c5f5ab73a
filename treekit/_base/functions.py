"""What does a function refer to? JAX sees nothing of it."""

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

from treekit._base.jax import jtu, untyped
from treekit._base.tree import is_mapping, reachable

FUNCTIONS: Any = (types.FunctionType, types.MethodType, functools.partial, type(untyped.jit(len)))


def captured_objects(f: object) -> list[Any]:
    """Return the objects that a callable captures, also through others: a method's instance, a partial's arguments."""
    return reachable(f, captured_by)[1:]


def captured_by(f: Any) -> list[Any]:
    """Return what a callable was made from; nothing for any other object, and for a plain function.

    | a callable | what it was made from |
    |---|---|
    | a bound method | a function and an instance |
    | a `functools.partial` | a function and arguments |
    | what `jax.jit`, `jax.vmap` or `functools.wraps` returns | the function that it wraps |
    """
    if isinstance(f, types.MethodType):
        return [f.__func__, f.__self__]
    if isinstance(f, functools.partial):
        return [f.func, *f.args, *f.keywords.values()]
    return [f.__wrapped__] if isinstance(f, FUNCTIONS) and hasattr(f, "__wrapped__") else []


def holds_its_values(x: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether `x` is a mapping that reads nothing: a dict, a view of one, or a node. Any other may read a file."""
    return isinstance(x, (dict, types.MappingProxyType)) or (is_mapping(x) and not jtu.all_leaves([x]))


def parts_of(x: Any) -> list[Any]:
    """Return what an object refers to, if it is a callable or a container; else nothing.

    | an object | refers to |
    |---|---|
    | a dict, list or tuple | its items |
    | a function | its closure, its defaults, and what it wraps |
    | a bound method | its function, its instance, and the attributes of that |
    | any other callable | what it was made from |
    """
    if holds_its_values(x):
        return [*x.values()]
    if isinstance(x, (tuple, list)):
        return [*cast(Iterable[Any], x)]
    parts = captured_by(x)
    if isinstance(x, types.MethodType):
        parts += getattr(x.__self__, "__dict__", {}).values()
    if isinstance(x, types.FunctionType):
        parts += [*closure_of(x).values(), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    return parts


def closure_of(f: types.FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name, without names that have no value, such as those deleted since."""
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
