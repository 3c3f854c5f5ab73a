"""The laws of a pytree and of a gradient transformation, for test suites.

`check_pytree` and `check_transformation` raise one AssertionError that lists every law broken, each with what will go
wrong and what to do about it.
"""

import copy
import dataclasses
import inspect
import math
import operator
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

from treekit._check import Broken as _Broken
from treekit._check import describe_error as _describe
from treekit._check import raise_broken as _raise_broken
from treekit._check import transformation_laws
from treekit._filter import is_array
from treekit._jax import jtu, untyped


def check_pytree(example: Any) -> None:
    """Check that a pytree can be taken apart and rebuilt, with anything JAX puts in the place of its leaves.

    Every node in it is checked: that flattening gives what it holds, in order, with key paths; that rebuilding keeps
    what is put in and everything else, and runs none of the class's code; that static parts are hashable, hold no
    array and are told apart.

    Args:
        example: an instance of any pytree class, of any library. What only another instance would show is not found.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> check_pytree({"w": jnp.ones(2), "b": None})
    """
    _raise_broken(f"a pytree of class {type(example).__qualname__}", _pytree_laws(example))


def check_transformation(tx: Any, params: Any, grads: Any = None, **extra: Any) -> None:
    """Check that a gradient transformation can be used in every way that JAX has, and keeps what it should.

    The laws: init and update take params and gradients; update keeps the structure, shapes, dtypes and weak types of
    the state, gives updates like the gradients, and is traced once; finite gradients give no NaN; init can be jitted;
    update runs in scan and under vmap; a NaN gradient that the updates do not show leaves none in the state; state
    shares no buffer with the params, so both can be donated; it can be pickled; state of less than 32 bits falls when
    the gradients do. Extra arguments that are functions are called as update calls them, some hundred times.

    Args:
        tx: a transformation, with `init` and `update`.
        params: the params or the raw model that it is for.
        grads: gradients; by default ones for the inexact arrays of `params`, None for the other leaves.
        **extra: extra arguments for `update`.

    Raises:
        AssertionError: lists each law that is broken, what will go wrong, and what to do.

    >>> import jax.numpy as jnp
    >>> from treekit import optax
    >>> check_transformation(optax.adam(1e-3), {"w": jnp.ones(2)})
    """
    _raise_broken("the transformation", transformation_laws(tx, params, grads, extra))


_REGISTER = "make the class a treekit.node, or register it with treekit.register_node"


def _pytree_laws(example: Any) -> Iterator[_Broken]:
    if _is_leaf(example):
        yield _Broken(
            law="it is a pytree node",
            found=f"a leaf of type {type(example).__qualname__}",
            cause="jit, grad and vmap cannot see what is inside it",
            remedy=_REGISTER,
        )
        return
    told: set[tuple[str, str]] = set()
    for where, broken in _laws_of_nodes(example, ()):
        if (key := (where.partition(" at ")[0], broken.law)) not in told:  # once for a hundred layers of a class
            told.add(key)
            yield broken._replace(found=f"{where}: {broken.found}")
    yield from _tells_classes_apart(example)


def _laws_of_nodes(x: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, _Broken]]:
    """What is broken by a node's children or, where they are sound, by the node itself; with its class and key path."""
    where = f"{type(x).__qualname__} at {jtu.keystr(path)}" if path else type(x).__qualname__
    try:
        children = _children(x)
    except Exception as error:  # the user's code may raise anything
        yield (
            where,
            _Broken(
                law="it can be flattened",
                found=_describe(error),
                cause="no function of JAX takes it",
                remedy="set every field when creating it, and let dicts have keys that can be sorted; " + _REGISTER,
            ),
        )
        return
    below = [each for key, child in children if not _is_leaf(child) for each in _laws_of_nodes(child, path + key)]
    yield from below or [(where, broken) for law in _NODE_LAWS for broken in law(x)]


def _children(x: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The children of a node, one level down, each with its key; an error where it cannot be flattened either way."""
    jtu.tree_leaves(x, is_leaf=lambda y: y is not x)
    return jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)[0]


def _flattens_alike(x: Any) -> Iterator[_Broken]:
    """Twice the same; with key paths the same as without; each key once."""
    leaves, treedef = jtu.tree_flatten(x)
    again, treedef_again = jtu.tree_flatten(x)
    if not _identical(leaves, again) or len(leaves) != treedef.num_leaves:
        yield _Broken(
            "flattening it gives the leaves that it holds, the same each time",
            found=f"{len(leaves)} leaves, then {len(again)}, or other objects",
            cause="what flatten computes is computed again at each call, and tree_at cannot find a leaf",
            remedy="compute when creating it, or in a method; let flatten hand out attributes; " + _REGISTER,
        )
    if not _equal(treedef, treedef_again):
        yield _Broken(
            "its static parts are equal to themselves",
            found="two flattenings of it have structures that are not equal, or cannot be compared",
            cause="jit compiles at each call or raises, scan and cond reject it",
            remedy="hold arrays as data; only what is hashable and has a plain == can be static",
        )
    with_path = jtu.tree_flatten_with_path(x)[0]
    paths = [jtu.keystr(path) for path, _ in with_path]
    if len(with_path) != len(leaves) or not _identical([leaf for _, leaf in with_path], leaves):
        yield _Broken(
            "it is flattened with key paths in the same order as without",
            found=", ".join(paths),
            cause="checkpoints, tree_map_with_path and error messages take one leaf for another",
            remedy="let flatten and flatten_with_keys agree; " + _REGISTER,
        )
    if len(set(paths)) != len(paths):
        yield _Broken(
            "each of its leaves has a key path of its own",
            found=", ".join(paths),
            cause="checkpoints that go by key path write one leaf over another",
            remedy="give each child a key of its own; " + _REGISTER,
        )


def _holds_what_it_is_rebuilt_with(x: Any) -> Iterator[_Broken]:
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
    tracing: list[_Broken | None] = []

    def trace(tracers: list[Any]) -> None:
        tracing.append(_rebuilt_with(treedef, tracers, "it is rebuilt with tracers, as by jit and grad"))

    untyped.eval_shape(trace, [0.0 for _ in leaves])
    yield from filter(None, tracing)


def _rebuilt_with(treedef: Any, leaves: list[Any], law: str) -> _Broken | None:
    try:
        again, treedef_again = jtu.tree_flatten(treedef.unflatten(leaves))
    except Exception as error:
        return _Broken(
            law,
            found=_describe(error),
            cause="reconstruction runs code that wants real leaves, such as __init__; transformations of JAX fail",
            remedy=_REGISTER,
        )
    expected = [leaf for leaf in leaves if leaf is not None]
    if not _identical(again, expected):
        return _Broken(
            f"{law}, and has these leaves again",
            found=f"{len(again)} leaves for {len(expected)}, or others, or in another order",
            cause="reconstruction overwrites what it is given: tree_at is without effect, gradients are lost",
            remedy=_REGISTER,
        )
    if len(expected) == len(leaves) and not _equal(treedef_again, treedef):
        return _Broken(
            f"{law}, and has the same structure again",
            found=f"{treedef_again} after {treedef}",
            cause="jit compiles anew, scan and cond reject it",
            remedy="let the static parts be the same for the rebuilt instance; " + _REGISTER,
        )
    return None


def _is_rebuilt_without_its_code(x: Any) -> Iterator[_Broken]:
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
        yield _Broken(
            "creation's code does not run when it is rebuilt",
            found=f"{' and '.join(sorted(ran))} ran",
            cause="what it prepares is prepared again, by each tree_map and jit; what it checks is checked on tracers",
            remedy=_REGISTER,
        )


def _is_rebuilt_whole(x: Any) -> Iterator[_Broken]:
    """Every attribute is there again, and none is a container that both instances would change."""
    leaves, treedef = jtu.tree_flatten(x)
    try:
        old, new = _attributes(x), _attributes(treedef.unflatten(leaves))
    except Exception:
        return  # another law says so
    cached = [name for name in old if hasattr(inspect.getattr_static(x.__class__, name, None), "__set_name__")]
    if lost := sorted(old.keys() - new.keys() - set(cached)):
        yield _Broken(
            "it has the same attributes when it is rebuilt",
            found=f"{', '.join(lost)} is lost",
            cause="an AttributeError, later, in what jit or tree_map returns",
            remedy="make it a field, data or static, or a functools.cached_property",
        )
    shared = [name for name in old if type(old[name]) in (dict, list, set) and old[name] is new.get(name)]
    if shared and not _why_not_static(_static_part(x)):
        yield _Broken(
            "it shares no container with what is rebuilt from it",
            found=f"{', '.join(shared)} is one object in both",
            cause="changing one changes the other, and each copy that jit, grad or tree_map made",
            remedy="make it a data field, whose containers are rebuilt too, or give it a tuple",
        )


def _attributes(x: Any) -> dict[str, Any]:
    """The public ones, of an instance with a __dict__."""
    attributes: dict[str, Any] = getattr(x, "__dict__", {})
    return {name: value for name, value in attributes.items() if not name.startswith("_")}


def _has_static_parts_that_are_static(x: Any) -> Iterator[_Broken]:
    static = _static_part(x)
    if why := _why_not_static(static):
        parts = jtu.tree_leaves(static, is_leaf=lambda part: part is not static and not isinstance(part, tuple))
        named = [
            f"{name}, of type {type(value).__qualname__}"
            for name, value in _attributes(x).items()
            if any(value is part for part in parts) and _why_not_static(value)
        ]
        yield _Broken(
            "its static parts are hashable and hold no array",
            found=f"{', '.join(named) or 'what it flattens to besides leaves'}: {why}",
            cause="jit goes on with the old value when it is changed in place, compiles at each call, or raises",
            remedy="make it a data field, or give a tuple for a list, a frozenset for a set",
        )


def _static_part(x: Any) -> Any:
    """What the treedef of a node holds besides the class."""
    if type(x) in (dict, OrderedDict, defaultdict):
        return None  # the keys, in a list that nobody else has
    return jtu.tree_structure(x).node_data()[1]


def _why_not_static(value: Any) -> str:
    try:
        hash(value)
    except Exception as error:
        return _describe(error)
    return "it holds an array" if any(map(is_array, jtu.tree_leaves(value))) else ""


def _tells_numbers_apart(x: Any) -> Iterator[_Broken]:
    """Whether 1 and 1.0 and True, in a static field that takes them all, are static parts that differ."""
    fields = dataclasses.fields(x) if dataclasses.is_dataclass(x) else ()
    for name in [f.name for f in fields if _takes_any_number(f.type)]:
        value = getattr(x, name, None)
        if not isinstance(value, bool | int | float) or not math.isfinite(value):
            continue
        for other in (float(value), int(value), bool(value), -float(value)):
            if other == value and repr(other) != repr(value) and _same_structure_with(x, name, other):
                yield _Broken(
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


def _tells_classes_apart(example: Any) -> Iterator[_Broken]:
    """Whether two classes within the example have equal structures."""
    seen: dict[type[Any], Any] = {}
    for x in _nodes(example):
        kind, treedef = x.__class__, jtu.tree_structure(x)
        if kind not in seen:
            for other in [cls for cls, each in seen.items() if _equal(each, treedef)]:
                yield _Broken(
                    "instances of two classes have different structures",
                    found=f"{other.__qualname__} and {kind.__qualname__} have equal ones",
                    cause="a function jitted for the one class is used for the other, and cond returns the wrong one",
                    remedy=_REGISTER,
                )
            seen[kind] = treedef


def _nodes(x: Any) -> Iterator[Any]:
    try:
        children = [child for _, child in _children(x) if not _is_leaf(child)]
    except Exception:
        return
    for child in children:
        yield from _nodes(child)
    yield x


def _is_leaf(x: Any) -> bool:
    try:
        return jtu.all_leaves([x])
    except Exception:
        return False  # a node, whose own flattening raised


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
