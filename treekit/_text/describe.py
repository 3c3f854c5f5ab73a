"""Describe leaves, types and values in words, for error messages and lists of differences.

| function | describes | such as |
|---|---|---|
| `describe` | a leaf | `f32[2,3]`, `int 1`, `str` |
| `type_name` | a leaf or a node | the same, `<function f>`, `Linear` |
| `describe_function` | a function | `<function f>`, `<jitted f>`; None for anything else |
| `describe_value` | any value | its `repr` on one short line, with arrays as `describe` writes them |
| `describe_types`, `describe_values` | two that differ | so that the texts differ too |
| `describe_error` | an exception | `ValueError: message` |
| `describe_bytes`, `count` | a number | `1.6 KB`, `2 leaves` |
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import wadler_lindig

from treekit._base.dtype import dtype_of, has_dtype
from treekit._base.jax import jtu, untyped
from treekit._base.memory import is_deleted
from treekit._base.predicates import is_array

_ONE_LINE = 10**9  # columns
_WIDTH = 60  # columns for a value
_ERROR_WIDTH = 300
_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")
_BITS = 128  # of an int that is written digit by digit
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
_SHOW_ADDRESSES: frozenset[Any] = frozenset({object.__repr__})
_JITTED: Any = untyped.jit(len).__class__
_pretty: Any = wadler_lindig  # its keyword arguments have no types
_SHORT_DTYPES = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c"))


def describe(x: object, *, short: bool = True) -> str:
    """Return `f32[2,3]` for an array (`float32[2,3]` if not short), type and value of a number, and other types."""
    if has_dtype(x):
        array = cast(Any, x)  # else pyright knows a part of its type
        name = short_dtype(array.dtype) if short else str(array.dtype)
        numpy = "(numpy)" if isinstance(x, (np.ndarray, np.generic)) else ""
        return f"{name}[{','.join(map(str, array.shape))}]{numpy}{'(deleted)' if is_deleted(array) else ''}"
    if dtype_of(x) is None:
        return "None" if x is None else type(x).__name__
    if isinstance(x, int) and x.bit_length() > _BITS:  # Python refuses to write the longest
        return f"{type(x).__name__} of {x.bit_length():,} bits"
    return f"{type(x).__name__} {x!r}"


def short_dtype(dtype: object) -> str:
    """Write a dtype, or its name, in short: `f32`."""
    name = str(dtype)
    return next((short + name.removeprefix(long) for long, short in _SHORT_DTYPES if name.startswith(long)), name)


def type_name(x: object) -> str:
    """Write what a leaf is, or the class of a node."""
    return describe_function(x) or (describe(x) if dtype_of(x) is not None or x is None else type(x).__qualname__)


def describe_function(x: object) -> str | None:
    """Return `<function f>`, `<jitted f>` or `<custom_jvp f>` for a function; None for anything else.

    The `repr` of most wrapped functions has only their address.
    """
    if isinstance(x, types.MethodType):
        return f"<bound method {x.__qualname__}>"
    if isinstance(x, types.FunctionType):
        return f"<{'wrapped ' * hasattr(x, '__wrapped__')}function {x.__qualname__}>"
    is_callable_object = callable(x) and type(x).__repr__ in _SHOW_ADDRESSES
    if not (is_callable_object or isinstance(x, _JITTED)):
        return None
    name: Any = getattr(x, "__qualname__", None)
    return f"<{'jitted' if isinstance(x, _JITTED) else type(x).__name__} {name}>" if name else None


def describe_value(x: object) -> str:
    """Write a value on one short line, with functions by name and arrays by dtype and shape.

    If its `__repr__` raises, write its type and the error.
    """
    return shortened(_on_one_line(x))


def _on_one_line(x: object, of_array: Callable[[object], str] = describe) -> str:
    try:
        text = _written(x, of_array)
        return " ".join(text.split()) if "\n" in text else text
    except Exception as error:
        return f"<{type(x).__qualname__}, whose __repr__ raises {type(error).__name__}>"


def _written(x: object, of_array: Callable[[object], str]) -> str:
    """Return the `repr` of a value without addresses, with functions by name, also in containers and dataclasses.

    The `repr` of an array would copy it from its device, so a function writes it. A node whose `repr` shows its arrays
    is written by its class.
    """
    if name := describe_function(x):
        return name
    if is_array(x) and not isinstance(x, np.generic):
        return of_array(x)
    if _is_written_by_items(type(x)):

        def item(y: object) -> wadler_lindig.AbstractDoc | None:
            if isinstance(y, type) or _is_written_by_items(type(y)):
                return None
            return wadler_lindig.TextDoc(_written(y, of_array))

        text: str = _pretty.pformat(x, custom=item, hide_defaults=False, width=_ONE_LINE)
        return text
    # Equinox's modules and treekit's nodes, which are dataclasses, write their arrays by dtype and shape themselves.
    if of_array is not repr and not jtu.all_leaves([x]) and not dataclasses.is_dataclass(x):
        if arrays := sum(map(is_array, jtu.tree_leaves(x))):
            return f"<{type(x).__qualname__} of {count(arrays, 'array')}>"
    return repr(x) if isinstance(x, str) else _ADDRESS.sub("", repr(x))


def _is_written_by_items(cls: type[Any]) -> bool:
    """Whether a class is a container, or a dataclass or named tuple with a generated `__repr__`."""
    is_plain_dataclass = dataclasses.is_dataclass(cls) and hasattr(cls.__repr__, "__wrapped__")
    is_plain_named_tuple = hasattr(cls, "_fields") and getattr(cls.__repr__, "__module__", None) == "collections"
    is_container = cls in (list, tuple, dict, set, frozenset, functools.partial)
    return is_container or is_plain_dataclass or is_plain_named_tuple


def describe_types(a: object, b: object) -> tuple[str, str]:
    """Return the names of two types; if they are equal, with their modules, and if those are too, with their ids."""
    for name in (type_name, _full_type_name):
        if name(a) != name(b):
            return name(a), name(b)
    return f"{_full_type_name(a)} at {id(type(a)):#x}", f"{_full_type_name(b)} at {id(type(b)):#x}"


def _full_type_name(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def describe_values(a: object, b: object) -> tuple[str, str]:
    """Write two values on one line each; long ones from where they begin to differ.

    Arrays are written by their values only if everything else is equal.
    """
    left, right = _on_one_line(a), _on_one_line(b)
    if left == right:
        left, right = _on_one_line(a, repr), _on_one_line(b, repr)
    if left == right:
        left, right = f"{shortened(left)} at {id(a):#x}", f"{shortened(right)} at {id(b):#x}"
    differ = (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
    start = next(differ, min(len(left), len(right)))
    return _from_difference(left, start), _from_difference(right, start)


def _from_difference(text: str, start: int) -> str:
    start = max(0, start - _WIDTH // 2) if len(text) > _WIDTH else 0
    end = start + _WIDTH
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def describe_error(error: BaseException) -> str:
    """Write the type and message of an error on one line, without its full stop.

    JAX names the key path in the second line of a message.
    """
    text = " ".join(str(error).split()).removesuffix(".")
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def describe_bytes(number: int) -> str:
    """Write a number of bytes as a person reads it: `72 bytes`, `1.6 KB` (of 1,600), `33 KB`, `120 GB`."""
    if number < 1000:
        return count(number, "byte")
    # 999,500 bytes would be 1,000 KB, so they are 1.0 MB.
    power = next((i for i in range(1, len(_UNITS)) if number < 999.5 * 1000**i), len(_UNITS))
    size = number / 1000**power
    return f"{size:.1f} {_UNITS[power - 1]}" if size < 9.95 else f"{size:,.0f} {_UNITS[power - 1]}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun, in the plural if needed."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shortened(text: str, width: int = _ERROR_WIDTH) -> str:
    """Cut text that is wider than `width`, and end it with "…"."""
    return text if len(text) <= width else text[: width - 1] + "…"
