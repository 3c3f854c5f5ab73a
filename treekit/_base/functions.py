"""What does a function refer to? JAX sees nothing of it."""

import functools
import types
from typing import Any

from treekit._base.jax import untyped
from treekit._base.tree import reachable


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


def parts_of(f: Any) -> list[Any]:
    """Return all that a callable refers to: what it was made from, its closure, its defaults, a method's attributes."""
    parts = captured_by(f)
    if isinstance(f, types.MethodType):
        parts += getattr(f.__self__, "__dict__", {}).values()
    if isinstance(f, types.FunctionType):
        parts += [*closure_of(f).values(), *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    return parts


def closure_of(f: types.FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name, without names that have no value, such as those deleted since."""
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}


FUNCTIONS: Any = (types.FunctionType, types.MethodType, functools.partial, type(untyped.jit(captured_by)))
