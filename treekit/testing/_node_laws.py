"""The laws of a node: how it is flattened and rebuilt, and its static parts.

`NODE_LAWS`, near the end, lists them. What only one law uses is below it, what several use is at the end.
"""

import copy
import dataclasses
import inspect
import math
import operator
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from treekit._base.dtype import has_dtype
from treekit._base.functions import captured_objects
from treekit._base.jax import jtu, untyped
from treekit._base.layouts import layout_of
from treekit._base.predicates import is_array, is_numeric_array
from treekit._base.tree import children_of
from treekit._base.types import PyTree, PyTreeDef
from treekit._compare.diff import tree_diff
from treekit._names.key_path import path_text
from treekit._text.describe import count, describe, describe_error, describe_value
from treekit.testing._violations import REGISTER, Violation


def _flattens_consistently(x: object) -> Iterator[Violation]:
    """Law: flattening twice, and with key paths, gives the same leaves, each with its own key path."""
    leaves, treedef = jtu.tree_flatten(x)
    again, treedef_again = jtu.tree_flatten(x)
    if not _identical(leaves, again):
        yield Violation(
            "flattening it twice gives the same leaves",
            found=f"{count(len(leaves), 'leaf', 'leaves')}, then {len(again)}"
            if len(leaves) != len(again)
            else "other objects the second time",
            effect="flatten computes its leaves again at each call, so tree_at cannot find them",
            fix="compute when you create it, or in a method, and let flatten return attributes; " + REGISTER,
        )
    if not same_treedef(treedef, treedef_again):
        yield Violation(
            "its static parts are equal to themselves",
            found="flattened twice, it has two structures that differ or cannot be compared",
            effect="jit raises or compiles at each call, and scan and cond reject it",
            fix="store arrays as data; a static value has to be hashable, with an == that returns a bool",
        )
    with_path = jtu.tree_flatten_with_path(x)[0]
    paths = [path_text(path) for path, _ in with_path]
    if not _identical([leaf for _, leaf in with_path], leaves):
        yield Violation(
            "flattening it with key paths gives the same leaves in the same order",
            found=f"with key paths, its leaves are {', '.join(paths)}",
            effect="checkpoints, tree_map_with_path and error messages mistake one leaf for another",
            fix="let flatten and flatten_with_keys agree; " + REGISTER,
        )
    if len({path for path, _ in with_path}) != len(paths):
        yield Violation(
            "each of its leaves has a key path of its own",
            found=f"its key paths are {', '.join(paths)}",
            effect="checkpoints that use key paths overwrite one leaf with another",
            fix="give each child its own key; " + REGISTER,
        )


def _keeps_new_leaves(x: object) -> Iterator[Violation]:
    """Law: flattening a rebuilt node gives the leaves that it was rebuilt with."""
    leaves, treedef = jtu.tree_flatten(x)
    shapes = [untyped.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array(leaf) else leaf for leaf in leaves]
    for what, stand_ins in [
        ("its own leaves", leaves),
        ("objects that are not arrays, as tree_at and vmap do", [object() for _ in leaves]),
        ("None, as filter and partition do", [None for _ in leaves]),
        ("ShapeDtypeStructs, as eval_shape does", shapes),
    ]:
        if violation := _rebuilt_with(treedef, stand_ins, f"it can be rebuilt with {what}"):
            yield violation
            return  # the others would report the same
    violations: list[Violation | None] = []

    def trace(tracers: list[Any]) -> None:
        violations.append(_rebuilt_with(treedef, tracers, "it can be rebuilt with tracers, as jit and grad do"))

    untyped.eval_shape(trace, [0.0 for _ in leaves])
    yield from filter(None, violations)


def _rebuilt_with(treedef: PyTreeDef, leaves: list[Any], law: str) -> Violation | None:
    try:
        rebuilt = treedef.unflatten(leaves)
        again, treedef_again = jtu.tree_flatten(rebuilt)
        with_paths = jtu.tree_flatten_with_path(rebuilt)[0]
    except Exception as error:
        return Violation(
            law,
            found=describe_error(error),
            effect="rebuilding runs code that needs real leaves, such as __init__, so JAX's transformations fail",
            fix=REGISTER,
        )
    given = [leaf for leaf in leaves if leaf is not None]
    if not _identical(again, given):
        return Violation(
            f"{law}, and keeps them",
            found=_what_became_of(given, with_paths),
            effect="rebuilding overwrites its leaves: tree_at has no effect, and gradients are lost",
            fix=REGISTER,
        )
    if len(given) == len(leaves) and not same_treedef(treedef_again, treedef):
        return Violation(
            f"{law}, and keeps its structure",
            found=f"{describe_value(treedef)} became {describe_value(treedef_again)}",
            effect="jit compiles again, and scan and cond reject it",
            fix="let the rebuilt instance have the same static parts; " + REGISTER,
        )
    return None


def _what_became_of(given: list[Any], after: list[tuple[Any, Any]]) -> str:
    """Describe how the leaves of a rebuilt node differ from those that it was rebuilt with."""
    if len(after) != len(given):
        return f"rebuilt with {count(len(given), 'leaf', 'leaves')}, it has {len(after)}"
    if sorted(map(id, given)) == sorted(id(leaf) for _, leaf in after):
        return "the same leaves in another order"
    pairs = zip(after, given, strict=True)
    others = [f"{path_text(path)} is {describe(leaf)}" for (path, leaf), old in pairs if leaf is not old]
    return f"{', '.join(others)}: not what was put there"


def _is_rebuilt_without_its_code(x: object) -> Iterator[Violation]:
    """Law: rebuilding a dataclass does not run its `__post_init__`, nor an `__init__` that its author wrote."""
    cls: type[Any] = x.__class__
    if not dataclasses.is_dataclass(cls):
        return  # the `__init__` of other classes may be designed for rebuilding
    leaves, treedef = jtu.tree_flatten(x)
    ran: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # A generated `__init__`, which has no source file, only stores its arguments.
        if code.co_name == "__post_init__" or (code.co_name == "__init__" and not code.co_filename.startswith("<")):
            if event == "call" and isinstance(frame.f_locals.get(code.co_varnames[0]), cls):
                ran.add(code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        treedef.unflatten(leaves)
    except Exception:
        return  # `_keeps_new_leaves` reports it
    finally:
        sys.setprofile(before)
    if ran:
        yield Violation(
            "rebuilding it does not run the code that creates it",
            found=f"{' and '.join(sorted(ran))} ran",
            effect="each tree_map and jit repeats what this code prepares, and its checks run on tracers",
            fix=REGISTER,
        )


def _keeps_its_attributes(x: object) -> Iterator[Violation]:
    """Law: a rebuilt node has the same attributes, with the same values, and shares no containers with the first."""
    leaves, treedef = jtu.tree_flatten(x)
    try:
        old, new = _public_attributes(x), _public_attributes(treedef.unflatten(leaves))
    except Exception:
        return  # `_keeps_new_leaves` reports it
    kept = [name for name in old if not _may_be_lost(x, name)]
    if lost := sorted(name for name in kept if name not in new):
        yield Violation(
            "rebuilding it keeps its attributes",
            found=f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} lost",
            effect="what jit or tree_map returns raises AttributeError later",
            fix="make it a field, data or static, or a functools.cached_property",
        )
    if reset := [name for name in kept if name in new and _is_reset(old[name], new[name])]:
        yield Violation(
            "rebuilding it keeps the values of its attributes",
            found=", ".join(f"{name} was {_named(old[name])} and became {_named(new[name])}" for name in reset),
            effect="what jit, grad or tree_map returns silently computes something else",
            fix="make it a field, data or static; " + REGISTER,
        )
    shared = [name for name in old if type(old[name]) in (dict, list, set) and old[name] is new.get(name)]
    if shared and not _not_static(x):  # which the next law reports
        yield Violation(
            "it shares no container with what is rebuilt from it",
            found=f"{', '.join(shared)} {'is' if len(shared) == 1 else 'are'} the same in both",
            effect="changing it in one changes the other, and every copy that jit, grad or tree_map made",
            fix="make it a data field, whose containers are rebuilt too, or store a tuple",
        )


def _may_be_lost(x: object, name: str) -> bool:
    """Whether an attribute is a `cached_property`, or in the `drop_fields` of `register_node`."""
    # A cached_property learns its name from the class, which other descriptors do not ask for.
    cached = hasattr(inspect.getattr_static(x.__class__, name, None), "__set_name__")
    return cached or name in getattr(layout_of(x.__class__), "dropped", ())


def _is_reset(old: object, new: object) -> bool:
    """Whether an attribute has lost its value. The first row that holds:

    | | the attribute | is reset |
    |---|---|---|
    | 1 | is the same object in both | no |
    | 2 | is None now | yes |
    | 3 | was a node | no: the laws of leaves check what is in it |
    | 4 | was an object without an `==` of its own, such as a function | if its type or name differs |
    | 5 | was anything else | if it differs |

    Objects as in row 4 may be created again each time.
    """
    if old is new:  # 1
        return False
    if new is None:  # 2
        return True
    if old is not None and not jtu.all_leaves([old]):  # 3
        return False
    eq: object = type(old).__eq__
    if eq is object.__eq__:  # 4
        return type(old) is not type(new) or getattr(old, "__qualname__", "") != getattr(new, "__qualname__", "")
    return bool(tree_diff(old, new))  # 5


def _named(x: object) -> str:
    return getattr(x, "__qualname__", "") or describe_value(x)


def _has_static_parts_that_are_static(x: object) -> Iterator[Violation]:
    """Law: static parts are hashable and contain no arrays."""
    if wrong := _not_static(x):
        fields = [
            f"{name}, of type {type(value).__qualname__}"
            for name, value in _public_attributes(x).items()
            if any(value is part for part, _ in wrong)
        ]
        yield Violation(
            "its static parts are hashable and contain no array",
            found=f"{', '.join(fields) or 'what flatten returns besides the leaves'}: {wrong[0][1]}",
            effect="jit raises, compiles at each call, or keeps using the old value when it is changed in place",
            fix="make it a data field, or store a tuple for a list and a frozenset for a set",
        )


def _not_static(x: object) -> list[tuple[Any, str]]:
    """Return the static parts of a node that cannot be static, each with the reason."""
    parts, again = _items(_static_part(x)), _items(_static_part(x))
    return [(part, why) for part in parts if (why := _why_not_static(part, again))]


def _static_part(x: object) -> Any:
    """Return the static part in the treedef of a node."""
    if type(x) in (dict, OrderedDict, defaultdict):
        return None  # only the keys, in a list of JAX's own
    return jtu.tree_structure(x).node_data()[1]


def _items(static: object) -> list[Any]:
    """Return the items of nested tuples."""
    return jtu.tree_leaves(static, is_leaf=lambda x: not isinstance(x, tuple))


def _why_not_static(part: object, again: list[Any]) -> str:
    """Say why this part cannot be static, or return "".

    A dict that flatten creates at each call cannot be changed in place, so only one that is also among the parts of a
    second flattening, `again`, is refused.
    """
    if any(map(is_array, jtu.tree_leaves([part, *captured_objects(part)]))):
        return "it contains an array"
    try:
        hash(part)
    except Exception as error:
        return describe_error(error) if any(part is other for other in again) else ""
    return ""


def _distinguishes_numbers(x: object) -> Iterator[Violation]:
    """Law: static numbers that are equal but not the same, such as 1, 1.0 and True, give different structures.

    Only fields of dataclasses whose annotations allow several types are tried.
    """
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


def _has_no_arrays_inside_of_leaves(x: object) -> Iterator[Violation]:
    """Law: its children that are leaves are arrays, or have none."""
    for key, child in children_of(x).items():
        held = {} if has_dtype(child) or isinstance(child, type) else _attributes(child)
        if child is not None and jtu.all_leaves([child]) and (names := [n for n, y in held.items() if _has_array(y)]):
            yield Violation(
                "an object inside that has arrays is a pytree node",
                found=f"{path_text((key,))} is a leaf of type {type(child).__qualname__}, with arrays in "
                f"{', '.join(names)}",
                effect="jit, grad and vmap cannot see these arrays",
                fix=REGISTER,
            )


def _attributes(x: object) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    of_classes: list[Any] = [getattr(cls, "__slots__", ()) for cls in type(x).__mro__]
    slots = [name for names in of_classes for name in ([names] if isinstance(names, str) else names)]
    return {**{name: getattr(x, name) for name in slots if hasattr(x, name)}, **getattr(x, "__dict__", {})}


def _has_array(x: object) -> bool:
    return any(is_numeric_array(y) for y in jtu.tree_leaves(x))


NODE_LAWS: tuple[Callable[[Any], Iterator[Violation]], ...] = (
    _flattens_consistently,
    _keeps_new_leaves,
    _is_rebuilt_without_its_code,
    _keeps_its_attributes,
    _has_static_parts_that_are_static,
    _distinguishes_numbers,
    _has_no_arrays_inside_of_leaves,
)


def _identical(xs: list[Any], ys: list[Any]) -> bool:
    return len(xs) == len(ys) and all(map(operator.is_, xs, ys))


def same_treedef(treedef: PyTreeDef, other: PyTree) -> bool:
    """Whether two treedefs are equal; False if comparing their static parts raises, as arrays do."""
    try:
        return bool(treedef == other)
    except Exception:
        return False


def _public_attributes(x: object) -> dict[str, Any]:
    """Return the public attributes of an instance with a `__dict__`."""
    attributes: dict[str, Any] = getattr(x, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}
