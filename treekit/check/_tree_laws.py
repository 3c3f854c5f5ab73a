"""The laws of a pytree: one function each, that yields what breaks it."""

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

from treekit._describe import describe_error, describe_value
from treekit._diff import tree_diff
from treekit._filter import is_array
from treekit._jax import jtu, untyped
from treekit._static import carried
from treekit.check._laws import Broken

_REGISTER = "make the class a treekit.node, or register it with treekit.register_node"


def pytree_laws(example: Any) -> Iterator[Broken]:
    """What a pytree breaks of the laws, each class and law once."""
    if _is_leaf(example):
        yield Broken(
            law="it is a pytree node",
            found=f"a leaf of type {type(example).__qualname__}",
            cause="jit, grad and vmap cannot see what is inside it",
            remedy=_REGISTER,
        )
        return
    told: set[tuple[str, str]] = set()
    sound: list[Any] = []
    for where, broken in _laws_of_nodes(example, sound):
        if (key := (where.partition(" at ")[0], broken.law)) not in told:  # once for a hundred layers of a class
            told.add(key)
            yield broken._replace(found=f"{where}: {broken.found}")
    yield from _tells_classes_apart(sound)


def _laws_of_nodes(example: Any, sound: list[Any]) -> Iterator[tuple[str, Broken]]:
    """What each node breaks below which nothing is broken, with its class and key path; `sound` gets the others."""
    nodes: list[tuple[tuple[Any, ...], Any, int]] = []  # key path, node, and the parent's place in this list
    ahead: list[tuple[tuple[Any, ...], Any, int]] = [((), example, -1)]
    while ahead:  # no recursion, so that a tree may be as deep as JAX allows
        path, x, _ = ahead[-1]
        if len(path) > sys.getrecursionlimit():
            yield type(example).__qualname__, _not_flattened(f"over {len(path) - 1} levels; does it contain itself?")
            return
        nodes.append(ahead.pop())
        try:
            ahead += [(path + key, child, len(nodes) - 1) for key, child in _children(x) if not _is_leaf(child)]
        except Exception:  # which a law says below
            continue
    unsound: set[int] = set()
    for place, (path, x, parent) in reversed(list(enumerate(nodes))):  # children before their parents
        broken = [] if place in unsound else list(_laws_of_node(x))
        where = f"{type(x).__qualname__} at {jtu.keystr(path)}" if path else type(x).__qualname__
        yield from ((where, each) for each in broken)
        if broken or place in unsound:
            unsound.add(parent)
        else:
            sound.append(x)


def _laws_of_node(x: Any) -> Iterator[Broken]:
    try:
        _children(x)
    except Exception as error:  # the user's code may raise anything
        yield _not_flattened(describe_error(error))
        return
    for law in _NODE_LAWS:
        yield from law(x)


def _not_flattened(found: str) -> Broken:
    return Broken(
        law="it can be flattened",
        found=found,
        cause="no function of JAX takes it",
        remedy="set every field when creating it, and let dicts have keys that can be sorted; " + _REGISTER,
    )


def _children(x: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The children of a node, one level down, each with its key; an error where it cannot be flattened either way."""

    def below(is_leaf: Iterator[bool]) -> Callable[[Any], bool]:
        return lambda _: next(is_leaf, True)

    # Not by identity: a list that contains itself must not be followed, since JAX does not recover from that.
    jtu.tree_leaves(x, is_leaf=below(iter([False])))
    return jtu.tree_flatten_with_path(x, is_leaf=below(iter([False])))[0]


def _flattens_alike(x: Any) -> Iterator[Broken]:
    """Twice the same; with key paths the same as without; each key once."""
    leaves, treedef = jtu.tree_flatten(x)
    again, treedef_again = jtu.tree_flatten(x)
    if not _identical(leaves, again) or len(leaves) != treedef.num_leaves:
        yield Broken(
            "flattening it gives the leaves that it holds, the same each time",
            found=f"{len(leaves)} leaves, then {len(again)}, or other objects",
            cause="what flatten computes is computed again at each call, and tree_at cannot find a leaf",
            remedy="compute when creating it, or in a method; let flatten hand out attributes; " + _REGISTER,
        )
    if not _equal(treedef, treedef_again):
        yield Broken(
            "its static parts are equal to themselves",
            found="two flattenings of it have structures that are not equal, or cannot be compared",
            cause="jit compiles at each call or raises, scan and cond reject it",
            remedy="hold arrays as data; only what is hashable and has a plain == can be static",
        )
    with_path = jtu.tree_flatten_with_path(x)[0]
    paths = [jtu.keystr(path) for path, _ in with_path]
    if len(with_path) != len(leaves) or not _identical([leaf for _, leaf in with_path], leaves):
        yield Broken(
            "it is flattened with key paths in the same order as without",
            found=", ".join(paths),
            cause="checkpoints, tree_map_with_path and error messages take one leaf for another",
            remedy="let flatten and flatten_with_keys agree; " + _REGISTER,
        )
    if len(set(paths)) != len(paths):
        yield Broken(
            "each of its leaves has a key path of its own",
            found=", ".join(paths),
            cause="checkpoints that go by key path write one leaf over another",
            remedy="give each child a key of its own; " + _REGISTER,
        )


def _holds_what_it_is_rebuilt_with(x: Any) -> Iterator[Broken]:
    leaves, treedef = jtu.tree_flatten(x)
    for what, stand_ins in [
        ("its own leaves", leaves),
        ("objects that are no arrays, as by tree_at and vmap", [object() for _ in leaves]),
        ("None, as by filter and partition", [None for _ in leaves]),
        ("ShapeDtypeStructs, as by eval_shape", [_abstract(leaf) for leaf in leaves]),
    ]:
        if broken := _rebuilt_with(treedef, stand_ins, f"it is rebuilt with {what}"):
            yield broken
            return  # the others would say the same
    tracing: list[Broken | None] = []

    def trace(tracers: list[Any]) -> None:
        tracing.append(_rebuilt_with(treedef, tracers, "it is rebuilt with tracers, as by jit and grad"))

    untyped.eval_shape(trace, [0.0 for _ in leaves])
    yield from filter(None, tracing)


def _rebuilt_with(treedef: Any, leaves: list[Any], law: str) -> Broken | None:
    try:
        again, treedef_again = jtu.tree_flatten(treedef.unflatten(leaves))
    except Exception as error:
        return Broken(
            law,
            found=describe_error(error),
            cause="reconstruction runs code that wants real leaves, such as __init__; transformations of JAX fail",
            remedy=_REGISTER,
        )
    expected = [leaf for leaf in leaves if leaf is not None]
    if not _identical(again, expected):
        return Broken(
            f"{law}, and has these leaves again",
            found=f"{len(again)} leaves for {len(expected)}, or others, or in another order",
            cause="reconstruction overwrites what it is given: tree_at is without effect, gradients are lost",
            remedy=_REGISTER,
        )
    if len(expected) == len(leaves) and not _equal(treedef_again, treedef):
        return Broken(
            f"{law}, and has the same structure again",
            found=f"{describe_value(treedef_again)} after {describe_value(treedef)}",
            cause="jit compiles anew, scan and cond reject it",
            remedy="let the static parts be the same for the rebuilt instance; " + _REGISTER,
        )
    return None


def _is_rebuilt_without_its_code(x: Any) -> Iterator[Broken]:
    kind: type[Any] = x.__class__
    if not dataclasses.is_dataclass(kind):
        return  # the `__init__` of other classes may be made for this
    leaves, treedef = jtu.tree_flatten(x)
    ran: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # A generated `__init__`, which has no file, only stores what it is given.
        if code.co_name == "__post_init__" or (code.co_name == "__init__" and not code.co_filename.startswith("<")):
            if event == "call" and isinstance(frame.f_locals.get(code.co_varnames[0]), kind):
                ran.add(code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        treedef.unflatten(leaves)
    except Exception:
        return  # another law says so
    finally:
        sys.setprofile(before)
    if ran:
        yield Broken(
            "creation's code does not run when it is rebuilt",
            found=f"{' and '.join(sorted(ran))} ran",
            cause="what it prepares is prepared again, by each tree_map and jit; what it checks is checked on tracers",
            remedy=_REGISTER,
        )


def _is_rebuilt_whole(x: Any) -> Iterator[Broken]:
    """Every attribute is there again, and none is a container that both instances would change."""
    leaves, treedef = jtu.tree_flatten(x)
    try:
        old, new = _attributes(x), _attributes(treedef.unflatten(leaves))
    except Exception:
        return  # another law says so
    cached = [name for name in old if hasattr(inspect.getattr_static(x.__class__, name, None), "__set_name__")]
    if lost := sorted(old.keys() - new.keys() - set(cached)):
        yield Broken(
            "it has the same attributes when it is rebuilt",
            found=f"{', '.join(lost)} is lost",
            cause="an AttributeError, later, in what jit or tree_map returns",
            remedy="make it a field, data or static, or a functools.cached_property",
        )
    if reset := [name for name in old if name in new and _is_reset(old[name], new[name])]:
        yield Broken(
            "its attributes have the same values when it is rebuilt",
            found=", ".join(f"{name} was {_named(old[name])}, and is {_named(new[name])}" for name in reset),
            cause="what jit, grad or tree_map returns computes something else, and nothing tells",
            remedy="make it a field, data or static; " + _REGISTER,
        )
    shared = [name for name in old if type(old[name]) in (dict, list, set) and old[name] is new.get(name)]
    if shared and not any(_has_static_parts_that_are_static(x)):
        yield Broken(
            "it shares no container with what is rebuilt from it",
            found=f"{', '.join(shared)} is one object in both",
            cause="changing one changes the other, and each copy that jit, grad or tree_map made",
            remedy="make it a data field, whose containers are rebuilt too, or give it a tuple",
        )


def _named(x: Any) -> str:
    return getattr(x, "__qualname__", "") or describe_value(x)


def _is_reset(old: Any, new: Any) -> bool:
    """Whether an attribute that is neither node nor leaf has become another. Arrays are for the laws of leaves.

    Objects without an == of their own, such as functions, may be made anew each time: the same by type and name.
    """
    if not (old is None or _is_leaf(old)) or is_array(old) or old is new:
        return False
    eq: object = type(old).__eq__
    if eq is object.__eq__:
        return type(old) is not type(new) or getattr(old, "__qualname__", "") != getattr(new, "__qualname__", "")
    return bool(tree_diff(old, new))


def _attributes(x: Any) -> dict[str, Any]:
    """The public ones, of an instance with a __dict__."""
    attributes: dict[str, Any] = getattr(x, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}


def _has_static_parts_that_are_static(x: Any) -> Iterator[Broken]:
    parts, again = _parts(_static_part(x)), _parts(_static_part(x))
    wrong = [(part, why) for part in parts if (why := _why_not_static(part, again))]
    if wrong:
        named = [
            f"{name}, of type {type(value).__qualname__}"
            for name, value in _attributes(x).items()
            if any(value is part for part, _ in wrong)
        ]
        yield Broken(
            "its static parts are hashable and hold no array",
            found=f"{', '.join(named) or 'what it flattens to besides leaves'}: {wrong[0][1]}",
            cause="jit goes on with the old value when it is changed in place, compiles at each call, or raises",
            remedy="make it a data field, or give a tuple for a list, a frozenset for a set",
        )


def _parts(static: Any) -> list[Any]:
    """The items of tuples within tuples."""
    return jtu.tree_leaves(static, is_leaf=_is_no_tuple)


def _is_no_tuple(x: Any) -> bool:
    return not isinstance(x, tuple)


def _static_part(x: Any) -> Any:
    """What the treedef of a node holds besides the class."""
    if type(x) in (dict, OrderedDict, defaultdict):
        return None  # the keys, in a list that nobody else has
    return jtu.tree_structure(x).node_data()[1]


def _why_not_static(part: Any, again: list[Any]) -> str:
    """`again` has the parts that another flattening gives: a dict made anew each time is nothing that changes later."""
    if any(map(is_array, jtu.tree_leaves([part, *carried(part)]))):
        return "it holds an array"
    try:
        hash(part)
    except Exception as error:
        return describe_error(error) if any(part is each for each in again) else ""
    return ""


def _tells_numbers_apart(x: Any) -> Iterator[Broken]:
    """Whether 1 and 1.0 and True, in a static field that takes them all, are static parts that differ."""
    fields = dataclasses.fields(x) if dataclasses.is_dataclass(x) else ()
    for name in [f.name for f in fields if _takes_any_number(f.type)]:
        value = getattr(x, name, None)
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            continue
        for other in (float(value), int(value), bool(value), -float(value)):
            if other == value and repr(other) != repr(value) and _same_structure_with(x, name, other):
                yield Broken(
                    "static values that are equal and not the same are told apart: 1, 1.0 and True; 0.0 and -0.0",
                    found=f"{name}={value!r} has the structure of {name}={other!r}",
                    cause="a function jitted for the one is used for the other, with its dtype and its branches",
                    remedy="make the class a treekit.node, or convert the value when creating it and annotate one type",
                )
                break


def _takes_any_number(annotation: object) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return any(word in text for word in ("Any", "object", "float", "complex"))  # a type-checker lets an int be a float


def _same_structure_with(x: Any, name: str, value: Any) -> bool:
    try:
        other = copy.copy(x)
        object.__setattr__(other, name, value)
        is_static = all(leaf is not value for leaf in jtu.tree_leaves(other))
        return is_static and _equal(jtu.tree_structure(other), jtu.tree_structure(x))
    except Exception:
        return False  # it cannot be changed so


_NODE_LAWS = (
    _flattens_alike,
    _holds_what_it_is_rebuilt_with,
    _is_rebuilt_without_its_code,
    _is_rebuilt_whole,
    _has_static_parts_that_are_static,
    _tells_numbers_apart,
)


def _tells_classes_apart(nodes: list[Any]) -> Iterator[Broken]:
    """Whether nodes of two classes have equal structures."""
    seen: dict[type[Any], Any] = {}
    for x in nodes:
        kind, treedef = x.__class__, jtu.tree_structure(x)
        if kind not in seen:
            for other in [cls for cls, each in seen.items() if _equal(each, treedef)]:
                yield Broken(
                    "instances of two classes have different structures",
                    found=f"{other.__qualname__} and {kind.__qualname__} have equal ones",
                    cause="a function jitted for the one class is used for the other, and cond returns the wrong one",
                    remedy=_REGISTER,
                )
            seen[kind] = treedef


def _is_leaf(x: Any) -> bool:
    return jtu.all_leaves([x])


def _identical(xs: list[Any], ys: list[Any]) -> bool:
    return len(xs) == len(ys) and all(map(operator.is_, xs, ys))


def _equal(treedef: Any, other: Any) -> bool:
    """Whether treedefs are equal; an error in comparing static parts, as with arrays among them, is a no."""
    try:
        return bool(treedef == other)
    except Exception:
        return False


def _abstract(x: Any) -> Any:
    return untyped.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x
