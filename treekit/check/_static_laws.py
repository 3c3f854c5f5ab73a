"""The laws of the static parts of a node, that is, of its structure without the leaves."""

import copy
import dataclasses
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from treekit._base.describe import describe_error
from treekit._base.jax import jtu
from treekit._base.predicates import is_array
from treekit._base.types import PyTree, PyTreeDef
from treekit._node.static_values import captured_objects
from treekit.check._laws import Violation


def same_treedef(treedef: PyTreeDef, other: PyTree) -> bool:
    """Whether two treedefs are equal; False if comparing their static parts raises, as arrays do."""
    try:
        return bool(treedef == other)
    except Exception:
        return False


def public_attributes(x: object) -> dict[str, Any]:
    """Return the public attributes of an instance with a `__dict__`."""
    attributes: dict[str, Any] = getattr(x, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}


def has_static_parts_that_are_static(x: object) -> Iterator[Violation]:
    """Law: static parts are hashable and contain no arrays."""
    parts, again = _items(_static_part(x)), _items(_static_part(x))
    wrong = [(part, why) for part in parts if (why := _why_not_static(part, again))]
    if wrong:
        fields = [
            f"{name}, of type {type(value).__qualname__}"
            for name, value in public_attributes(x).items()
            if any(value is part for part, _ in wrong)
        ]
        yield Violation(
            "its static parts are hashable and contain no array",
            found=f"{', '.join(fields) or 'what flatten returns besides the leaves'}: {wrong[0][1]}",
            effect="jit raises, compiles at each call, or keeps using the old value when it is changed in place",
            fix="make it a data field, or store a tuple for a list and a frozenset for a set",
        )


def _items(static: object) -> list[Any]:
    """Return the items of nested tuples."""
    return jtu.tree_leaves(static, is_leaf=lambda x: not isinstance(x, tuple))


def _static_part(x: object) -> Any:
    """Return the static part in the treedef of a node."""
    if type(x) in (dict, OrderedDict, defaultdict):
        return None  # only the keys, in a list of JAX's own
    return jtu.tree_structure(x).node_data()[1]


def _why_not_static(part: object, again: list[Any]) -> str:
    """Say why this part cannot be static, or return "".

    `again` has the parts from a second flattening: a dict that flatten creates each time cannot be changed in place.
    """
    if any(map(is_array, jtu.tree_leaves([part, *captured_objects(part)]))):
        return "it contains an array"
    try:
        hash(part)
    except Exception as error:
        return describe_error(error) if any(part is other for other in again) else ""
    return ""


def _distinguishes_numbers(x: object) -> Iterator[Violation]:
    fields = dataclasses.fields(x) if dataclasses.is_dataclass(x) else ()
    for name in [field.name for field in fields if _takes_any_number(field.type)]:
        value = getattr(x, name, None)
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            continue
        for other in (float(value), int(value), bool(value), -float(value)):
            if other == value and repr(other) != repr(value) and _has_same_structure_with(x, name, other):
                yield Violation(
                    "static values that are equal but not the same are distinguished: 1, 1.0 and True; 0.0 and -0.0",
                    found=f"{name}={value!r} has the structure of {name}={other!r}",
                    effect="jit uses a function compiled for one value for the other, with its dtypes and branches",
                    fix="make the class a treekit.node, or convert the value when you create it and annotate one type",
                )
                break


def _takes_any_number(annotation: object) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return any(word in text for word in ("Any", "object", "float", "complex"))  # type checkers accept an int as a float


def _has_same_structure_with(x: object, name: str, value: object) -> bool:
    try:
        other = copy.copy(x)
        object.__setattr__(other, name, value)
        is_static = all(leaf is not value for leaf in jtu.tree_leaves(other))
        return is_static and same_treedef(jtu.tree_structure(other), jtu.tree_structure(x))
    except Exception:
        return False  # the class does not allow such a copy


STATIC_LAWS: tuple[Callable[[Any], Iterator[Violation]], ...] = (
    has_static_parts_that_are_static,
    _distinguishes_numbers,
)
