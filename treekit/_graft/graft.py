"""graft: carry the values of one tree over to a tree of another structure."""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from treekit._base.describe import describe, describe_value
from treekit._base.dtype import cast_like, check_fits, dtype_of, has_dtype, issubdtype
from treekit._base.jax import is_ref, jnp, jtu, new_ref, untyped
from treekit._base.key_path import Pattern, PatternSet, check_pattern, listed, nearest, pattern_text
from treekit._base.predicates import is_narrow, is_traced
from treekit._base.tree import is_mapping
from treekit._base.types import PyTree
from treekit._graft.names import Convert, Leaf, Resize, Source, Targets, leaves_of, match_names, rules_of, sources_of
from treekit._graft.report import GraftReport, check_rename, check_strict, hints, other_lengths, report_of
from treekit._graft.states import match_states

T = TypeVar("T")
# An array, a number or a `jax.ShapeDtypeStruct`; type checkers do not know what these have in common.
Value: TypeAlias = Any
_JAX: Any = (jax.Array, jax.ShapeDtypeStruct)
_PATTERN: Any = (str, re.Pattern)
_FILE: Any = (str, bytes, os.PathLike)


def graft(
    new: T,
    old: object,
    *,
    fresh: Pattern | Sequence[Pattern] = (),
    rename: Mapping[str, Targets] | None = None,
    convert: Mapping[Any, Convert] | None = None,
    resize: Resize | Mapping[Any, Resize] | None = None,
    cast: bool = False,
    strict: bool = True,
) -> tuple[T, GraftReport]:
    """Carry the values of a tree over to another one, such as a checkpoint to a model that has changed.

    A leaf of `new` gets the value of the leaf of `old` at the same key path, if shape and dtype are the same. An
    attribute `w`, a key "w" and an index written as a string count as the same name. So `old` may be the plain dicts
    and lists that Orbax or Flax restore, or a flat dict such as a PyTorch state dict, a safetensors or npz file, or the
    result of `to_state_dict`. Paths are written as in `path_mask`.

    In an optimizer state, paths depend on the wrappers. So between two trees that have states, that is, named tuples
    whose class name ends in `State`, as Optax's do, a leaf is matched by the class of the state, its field, the
    parameter, and the label if both trees have it. Therefore, a parameter keeps its moments in another wrapper. Keys
    above the outermost state are names like any other. A state that was restored as plain dicts is matched by name
    alone: if wrappers have changed, restore it into `old_optimizer.init(old_params)` first.

    Python numbers are values like any other: the new tree gets the rate of a Dropout or a count of steps if the old one
    has it, as from `equinox.tree_deserialise_leaves`. To keep a setting of the new model, name it in `fresh`. The
    result of `to_state_dict` has no Python numbers, so with it the new tree keeps its own.

    Args:
        new: a tree of the new structure, fresh from its `__init__` or its optimizer's `init`. Leaves may be
            `jax.ShapeDtypeStruct`; those without an old value stay as they are.
        old: the tree that has the values.
        fresh: patterns of new paths that keep the new values, as in `path_mask`; a single pattern too. If the old tree
            has values for them, these are dropped.
        rename: maps old paths to new ones, `{"body.**": "encoder.**"}`; to a list of new ones that share the value; or
            to None, to drop it. `*` and `**` match the same on both sides; the first pattern that matches decides. If
            one side lacks a `*`, arrays are stacked (`{"layers.*.**": "layers.**"}`) or unstacked. A pair that begins
            with `**` also applies inside optimizer states: `{"**.layers.2.**": "**.layers.3.**"}`.
        convert: maps patterns of new paths to functions of the old array, `{"**.weight": lambda x: x.T}`, which run
            before shapes are compared: on each array before stacking, and on each part after unstacking.
        resize: a function for leaves whose old value has another shape, such as a grown vocabulary. It takes the new
            leaf and the old one, and returns an array of the new shape, or None to refuse it. Or a dict from patterns
            of new paths to such functions.
        cast: also cast old values of other dtypes, as far as NumPy's same_kind allows: bf16 to f32 and back, but not
            a float to an int, nor a number to a bool, nor the 8-bit codes of an optimizer's state to anything. Without
            it, only 64-bit values are cast to JAX's 32 bits. A value that would become infinite, and an integer out of
            bounds, are refused.
        strict: raise an error unless each leaf of `new` has an old value or is named in `fresh`, and each leaf of
            `old` is used or dropped by `rename`. Of `new`, Python numbers, typed PRNG keys and Flax's counters of
            random streams need no old value. False carries over what fits; the report says what is left.

    Returns:
        A tree of the structure, shapes, dtypes and shardings of `new`; and a report with `kept`, `fresh`, `dropped`,
        `refused` and `missing`, which prints as a table, and `not_finite`, the number of infinities and NaNs that the
        tree gets. Leaves without a dtype (functions, strings) are taken from `new`, and are not in the report.

    Raises:
        TypeError: the old tree has a `jax.ShapeDtypeStruct` for a value; an argument has another type; or `convert` or
            `resize` does not return an array.
        ValueError: with `strict`, a leaf is left: the message lists these leaves, and the `fresh` and `rename` that
            accept them. The trees have no leaf in common, or only one has leaves; several old states are possible (the
            message lists them); a pattern never applies, or none of its targets exists (with `strict`, one of them does
            not); two leaves are renamed to one path; or `resize` returns another shape.

    Warns:
        UserWarning: without `strict`, a list has more entries in one tree. They are matched by index, so a layer
            inserted in the middle would get its neighbour's weights. With `strict`, the error says so.

    >>> import jax.numpy as jnp
    >>> old = {"encoder.w": jnp.ones((2, 3)), "head": jnp.ones(10), "step": jnp.ones(())}
    >>> new = {"body": {"w": jnp.zeros((3, 2))}, "head": jnp.zeros(11), "scale": jnp.zeros(())}
    >>> rename = {"encoder.**": "body.**", "step": None}
    >>> convert = {"body.w": lambda x: x.T}
    >>> tree, report = graft(new, old, fresh=["head", "scale"], rename=rename, convert=convert)
    >>> print(report)
    1 kept, 2 fresh, 1 dropped, 0 refused (new | old)
    head    fresh    f32[11] | f32[10], which is not used
    scale   fresh    f32[] | nothing
    step    dropped  nothing | f32[], which rename drops
    body.w  kept     f32[3,2] | f32[2,3] at encoder.w, converted
    """
    patterns = _check_arguments(fresh, rename, convert, resize)
    new_leaves, old_leaves = leaves_of(new), leaves_of(old, is_old=True)
    if bool(new_leaves) != bool(old_leaves):
        side: str = "old" if new_leaves else "new"
        tree: Any = old if new_leaves else new
        is_file = isinstance(tree, _FILE) or hasattr(tree, "read")
        load = ". graft reads no files: load it first, as with safetensors.numpy.load_file or numpy.load" * is_file
        raise ValueError(
            f"graft: the {side} tree must be a pytree with arrays or numbers; found {describe_value(tree)}{load}"
        )
    names, old_names = ([leaf.name for leaf in leaves] for leaves in (new_leaves, old_leaves))
    is_fresh = _chosen("fresh", dict.fromkeys(patterns, True), names)
    converts, resizes = _chosen("convert", convert, names), _chosen("resize", resize, names)
    for leaf in new_leaves:
        leaf.is_fresh, leaf.convert, leaf.resize = bool(is_fresh[leaf.name]), converts[leaf.name], resizes[leaf.name]
        leaf.is_asked = leaf.is_asked and not leaf.is_fresh
    rename = rename or {}
    rules = _chosen("rename", {x: rules_of(x, targets) for x, targets in rename.items()}, old_names, "old")
    for leaf in old_leaves:
        leaf.rules = rules[leaf.name]

    sources = sources_of(old_leaves, new_leaves)
    matches = match_states(new_leaves, sources.values(), match_names(new_leaves, sources))
    used = {source for each in matches.values() for source in each}
    check_rename(sources.values(), used, strict, names)

    seen: set[int] = set()
    values = {x: _carry(x, matches[x][0], cast, seen) for x in new_leaves if x in matches and not x.is_fresh}
    report = report_of(new_leaves, old_leaves, sources.values(), matches, values)

    lacking = [leaf for leaf in new_leaves if leaf.is_asked and leaf not in matches]
    used_leaves = {leaf for source in used for leaf in source.origins}
    unused = [leaf for source in sources.values() for leaf in source.origins if leaf not in used_leaves]
    advice = list(hints(lacking, unused, any(leaf.slot.kind for leaf in old_leaves), bool(matches)))
    if new_leaves and not matches:
        raise ValueError(
            f"the trees have no leaf in common. Old: {listed(old_names)}. New: {listed(names)}. Say which is which: "
            f"{' '.join([f'rename={{{old_names[0]!r}: …, …}}.', *advice])}"
        )
    lengths = other_lengths(lacking, matches, unused, used_leaves)
    if strict:
        check_strict(report, old_names, patterns, rename, [*[f"The {lengths}"] * bool(lengths), *advice])
    elif lengths:
        warnings.warn(f"graft: {lengths}", stacklevel=2)
    leaves, treedef = jtu.tree_flatten(new)
    for leaf, value in values.items():
        if value is not None:
            is_inside_ref = is_ref(leaves[leaf.index])
            leaves[leaf.index] = new_ref(jnp.asarray(value)) if is_inside_ref else value
    out: T = treedef.unflatten(leaves)
    return out, report


# -------------------------------------------------------------------------------------------------------- the arguments


_MUST_BE = {
    "fresh": "a pattern of new paths that keep their values, or a list of patterns, ['head.**']",
    "rename": "a dict that maps old paths to new ones, {'body.**': 'encoder.**'}, to a list of new ones, or to None",
    "convert": "a dict from patterns of new paths to functions of the old array, {'**.weight': lambda x: x.T}",
    "resize": "a function of the new leaf and the old one, or a dict from patterns to such functions",
}


def _check_arguments(fresh: PyTree, rename: object, convert: object, resize: object) -> list[Pattern]:
    """Raise a TypeError if an argument has another type; return the patterns of `fresh`."""
    for name, x, is_right in (
        ("fresh", fresh, isinstance(fresh, _PATTERN) or type(fresh) in (list, tuple)),
        ("rename", rename, rename is None or (is_mapping(rename) and all(map(_is_rule, rename, rename.values())))),
        ("convert", convert, convert is None or (is_mapping(convert) and all(map(callable, convert.values())))),
        ("resize", resize, resize is None or all(map(callable, resize.values() if is_mapping(resize) else [resize]))),
    ):
        if not is_right:
            raise TypeError(f"{name} must be {_MUST_BE[name]}; found {describe_value(x)}")
    return list(map(check_pattern, [fresh] if isinstance(fresh, _PATTERN) else fresh))


def _is_rule(pattern: object, target: PyTree) -> bool:
    targets: list[Any] = list(target) if type(target) in (list, tuple) and target else [target]
    return isinstance(pattern, str) and (target is None or all(isinstance(x, str) for x in targets))


def _chosen(argument: str, given: object, names: Sequence[str], side: str = "new") -> dict[str, Any]:
    """Return for each leaf what the first pattern that matches it is mapped to, or None.

    Raises:
        ValueError: a pattern matches no name, or decides about none. Patterns of `fresh` may overlap.
    """
    if not is_mapping(given):
        return dict.fromkeys(names, given)
    globs = list(map(check_pattern, given))
    patterns = PatternSet(globs)
    matching = {name: sorted(patterns.matching(patterns.place(name), name)) for name in names}
    for i in sorted(set(range(len(globs))).difference(each[0] for each in matching.values() if each)):
        text = pattern_text(globs[i])
        earlier = sorted({each[0] for each in matching.values() if i in each})
        if not earlier:
            raise ValueError(
                f"{argument}: {text!r} matches no leaf of the {side} tree. The nearest paths: {nearest(text, names)}"
            )
        if argument != "fresh":
            raise ValueError(
                f"{argument}: {text!r} decides about no leaf, since earlier patterns match all leaves that it matches: "
                f"{', '.join(repr(pattern_text(globs[j])) for j in earlier)}. Put it before them"
            )
    return {name: given[globs[each[0]]] if each else None for name, each in matching.items()}


# ----------------------------------------------------------------------------------------------------------- the values


def _carry(leaf: Leaf, source: Source, cast: bool, seen: set[int]) -> Any:
    """Return the old value with the shape and dtype of the new leaf, or None if it is refused.

    Args:
        leaf: the new leaf.
        source: the old value that it matches.
        cast: as in `graft`.
        seen: the ids of the old arrays that other leaves have, to which this one's is added. An array is copied for
            each leaf after the first, so that a step may donate them all.
    """
    new, convert = leaf.value, leaf.convert
    old = source.read(lambda x: _called("convert", leaf, convert, x) if convert else x)
    if old is None:
        return None  # arrays that cannot be stacked or unstacked
    if np.shape(old) != np.shape(new):
        if leaf.resize is None or (old := _called("resize", leaf, leaf.resize, new, old)) is None:
            return None
        if np.shape(old) != np.shape(new):
            raise ValueError(
                f"at {leaf.name}: resize must return an array of shape {np.shape(new)}, found {np.shape(old)}"
            )
    if dtype_of(old) != dtype_of(new) and (not cast or any(x.is_code for x in (leaf, *source.origins))):
        return None
    if id(old) in seen and isinstance(old, jax.Array) and not is_traced(old):
        old = jnp.copy(old)
    seen.add(id(old))
    return _cast(old, new)


def _called(argument: str, leaf: Leaf, f: Callable[..., Any], *arrays: Value) -> Any:
    """Call a function of `convert` or `resize`."""
    try:
        value = f(*arrays)
    except Exception as error:
        error.add_note(f"This happened in the `{argument}` of graft, at {leaf.name}, on {describe(arrays[-1])}")
        raise
    if dtype_of(value) is None and not (argument == "resize" and value is None):
        raise TypeError(f"at {leaf.name}: {argument} must return an array, found {describe_value(value)}")
    return value


def _cast(old: Value, new: Value) -> Any:
    """Return a value with the dtype, the class and the place of the new leaf, or None if that would change it."""
    raw: Any = getattr(new, "dtype", new.__class__)  # a Python number or a NumPy array may have 64 bits
    want: Any = dtype_of(new) if isinstance(new, _JAX) else np.dtype(raw)
    if issubdtype(want, jnp.bool_) and not issubdtype(dtype_of(old), jnp.bool_):
        return None  # only `convert` can decide which numbers mean True
    try:
        check_fits(old, want)
        with np.errstate(over="ignore"):  # such values are refused below
            value = cast_like(old, new)
            # Values on the host may have 64 bits, and must not be rounded to the 32 bits of JAX.
            if not (is_traced(old) or isinstance(new, _JAX) or not has_dtype(old)):
                value = np.asarray(old).astype(want)
    except (TypeError, OverflowError):  # the cast is not allowed, or a Python int does not fit
        return None
    return _placed(value, new) if _is_finite_where(old, value) else None


def _is_finite_where(old: Value, value: Value) -> bool:
    """Whether a cast has preserved what is infinite, NaN and neither; unknown while tracing, so True.

    Some dtypes of 8 bits and less have no NaN, or no infinity: then large numbers become the largest.
    """
    have, want = getattr(old, "dtype", None), getattr(value, "dtype", None)
    if have == want or is_traced(old) or not issubdtype(want, jnp.inexact):
        return True
    if issubdtype(have, jnp.inexact) and float(jnp.finfo(want).max) >= float(jnp.finfo(have).max):
        return True
    xp = jnp if isinstance(old, jax.Array) else np
    wide = value.astype(np.float32) if is_narrow(value) else value
    has_infinity = not np.isfinite(np.asarray(np.inf, np.float32).astype(want))
    if not has_infinity and bool((abs(np.asarray(old, float)) > float(jnp.finfo(want).max)).any()):
        return False
    return bool(xp.all((xp.isfinite(wide) == xp.isfinite(old)) & (xp.isnan(wide) == xp.isnan(old))))


def _placed(value: Value, new: Value) -> Any:
    """Convert a value to the type of the new leaf: a Python number, a NumPy array, or a JAX array with its sharding."""
    if is_traced(value):
        return value
    if not has_dtype(new):
        return type(new)(np.asarray(value).item())
    like: Any = new
    if not isinstance(new, _JAX):
        array = np.asarray(value, like.dtype)
        return array if isinstance(new, np.ndarray) else array[()]
    has_place = isinstance(new, jax.ShapeDtypeStruct) or (not is_traced(new) and like.committed)
    return untyped.device_put(value, like.sharding) if has_place and like.sharding else jnp.asarray(value)
